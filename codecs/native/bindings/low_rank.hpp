// The Python bindings of the search for low rank and of its kernels.
#pragma once

#include <nanobind/nanobind.h>

namespace deltahub {

void bind_search(nanobind::module_& m);

}  // namespace deltahub
