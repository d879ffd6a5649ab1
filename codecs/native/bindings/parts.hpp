// The parts of the Python module, one for each source file of this folder.
#pragma once

#include <nanobind/nanobind.h>

namespace deltahub {

void bind_codecs(nanobind::module_& m);    // the block table, encoders and decoders
void bind_frames(nanobind::module_& m);    // encoding a frame in one call, estimates of sizes
void bind_search(nanobind::module_& m);    // the search for low rank and its kernels
void bind_masks(nanobind::module_& m);     // EMR-Merging and the codec masks
void bind_planes(nanobind::module_& m);    // neuzip exports
void bind_preludes(nanobind::module_& m);  // what a prelude says, for decoders on GPUs

}  // namespace deltahub
