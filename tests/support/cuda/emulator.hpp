// CUDA's words and intrinsics for a C++ compiler, so that kernels run on the CPU. Each thread of a
// thread block is a fiber that runs until it needs the other lanes of its warp, or the other
// threads. Lanes that meet at different intrinsics, or wait for a lane that never comes, end the
// launch with an error.
#pragma once

#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __shared__

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace emulator {

struct Dimensions {
  unsigned x = 1, y = 1, z = 1;
};

enum class Intrinsic { ballot, shuffle, sync };

// Waits until all lanes of the mask are here with the same intrinsic; returns what each brought.
const std::uint64_t* meet(Intrinsic intrinsic, unsigned mask, std::uint64_t brought);
// Waits for all threads of the thread block that have not ended.
void meet_threads();
unsigned lane();

}  // namespace emulator

extern emulator::Dimensions threadIdx, blockIdx, blockDim, gridDim;

inline unsigned __ballot_sync(unsigned mask, int is_true) {
  const std::uint64_t* const votes = emulator::meet(emulator::Intrinsic::ballot, mask, is_true != 0);
  unsigned result = 0;
  for (unsigned lane = 0; lane < 32; ++lane)
    if (mask >> lane & 1) result |= unsigned(votes[lane]) << lane;
  return result;
}

template <class T>
T __shfl_sync(unsigned mask, T value, unsigned from) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  const std::uint64_t* const all = emulator::meet(emulator::Intrinsic::shuffle, mask, bits);
  std::memcpy(&value, &all[from % 32], sizeof value);
  return value;
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, unsigned distance) {
  return __shfl_sync(mask, value, emulator::lane() ^ distance);
}

inline void __syncwarp(unsigned mask = 0xffffffff) {
  emulator::meet(emulator::Intrinsic::sync, mask, 0);
}
inline void __syncthreads() { emulator::meet_threads(); }

inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __clz(int value) { return value == 0 ? 32 : __builtin_clz(unsigned(value)); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return unsigned((std::uint64_t(high) << 32 | low) >> (shift & 31));
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return (unsigned long long)(Wide(a) * b >> 64);
}
inline unsigned long long atomicMin(unsigned long long* at, unsigned long long value) {
  const unsigned long long before = *at;
  if (value < before) *at = value;
  return before;
}
