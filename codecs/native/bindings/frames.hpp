// Frames that are made by one call: their part of the Python face.
#pragma once

#include <nanobind/nanobind.h>

namespace deltahub {

void bind_frames(nanobind::module_& m);

}  // namespace deltahub
