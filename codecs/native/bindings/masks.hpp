// The Python bindings of EMR-Merging and of the codec masks.
#pragma once

#include <nanobind/nanobind.h>

namespace deltahub {

void bind_masks(nanobind::module_& m);

}  // namespace deltahub
