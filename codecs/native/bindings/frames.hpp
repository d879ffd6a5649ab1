// Python bindings of encoding a whole frame in one call, and of size estimates.
#pragma once

#include <nanobind/nanobind.h>

namespace deltahub {

void bind_frames(nanobind::module_& m);

}  // namespace deltahub
