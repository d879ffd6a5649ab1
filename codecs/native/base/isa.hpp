// Kernels for several instruction sets include the same headers. Each set has an inline namespace
// of its own, because the linker keeps one copy of an inline function per name, and that copy
// could contain instructions which an older processor does not have.
#pragma once

#ifndef DELTAHUB_ISA
#define DELTAHUB_ISA portable
#endif

#define DELTAHUB_BEGIN \
  namespace deltahub { \
  inline namespace DELTAHUB_ISA {
#define DELTAHUB_END \
  }                  \
  }
