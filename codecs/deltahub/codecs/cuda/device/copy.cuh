// Copies the bytes of a block that is stored raw or equals its base.
#pragma once

#include "types.cuh"

namespace deltahub {

template <class Unit>
__device__ inline void copy_units(u8* to, const u8* from, u64 size) {
  auto* const out = reinterpret_cast<Unit*>(to);
  const auto* const in = reinterpret_cast<const Unit*>(from);
  // Several loads before their stores, so that the latency of memory passes once for all of them.
  constexpr u32 n_at_once = 4;
  const u64 n = size / sizeof(Unit);
  u64 i = lane_of_thread();
  for (; i + (n_at_once - 1) * n_lanes < n; i += n_at_once * n_lanes) {
    Unit units[n_at_once];
#pragma unroll
    for (u32 k = 0; k < n_at_once; ++k) units[k] = in[i + k * n_lanes];
#pragma unroll
    for (u32 k = 0; k < n_at_once; ++k) out[i + k * n_lanes] = units[k];
  }
  for (; i < n; i += n_lanes) out[i] = in[i];
}

// All lanes of a warp copy `size` bytes, in the largest units that the addresses allow.
__device__ inline void copy_bytes(u8* to, const u8* from, u64 size) {
  const u64 all = u64(to) | u64(from) | size;
  if (all % 16 == 0)
    copy_units<uint4>(to, from, size);
  else if (all % 4 == 0)
    copy_units<u32>(to, from, size);
  else
    copy_units<u8>(to, from, size);
}

}  // namespace deltahub
