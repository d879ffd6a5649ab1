// Headers that kernels for more than one instruction set include live in an inline namespace of
// that set: else the linker would keep one copy of an inline function, and it might be the one that
// an older processor cannot run.
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
