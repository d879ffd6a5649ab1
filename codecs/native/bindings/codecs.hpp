// Python bindings of the block table and of the encoders and decoders of both codecs.
#pragma once

#include <nanobind/nanobind.h>

namespace deltahub {

void bind_codecs(nanobind::module_& m);

}  // namespace deltahub
