// What the search for low rank calls: its part of the Python face.
#pragma once

#include <nanobind/nanobind.h>

namespace deltahub {

void bind_search(nanobind::module_& m);

}  // namespace deltahub
