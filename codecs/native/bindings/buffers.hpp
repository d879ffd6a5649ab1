// The types of the buffers that Python passes, and how stubs name them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

#include "kernels/codec_interface.hpp"

// In stubs buffers have the names of builtin types. nanobind's own names would need numpy arrays.
#define BUFFER "bytes | bytearray | memoryview"

namespace deltahub {

using Bytes = nanobind::ndarray<const std::uint8_t, nanobind::ndim<1>, nanobind::c_contig,
                                nanobind::device::cpu>;
using WritableBytes =
    nanobind::ndarray<std::uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

inline View view_of(const Bytes& bytes) { return {bytes.data(), bytes.size()}; }

}  // namespace deltahub
