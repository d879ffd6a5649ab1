// Integer types, and what the kernels know of a warp. NVRTC, which compiles these files on the
// machine that runs them, has no standard headers.
#pragma once

namespace deltahub {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i16 = short;
using i32 = int;
using i64 = long long;

constexpr u32 n_lanes = 32, all_lanes = 0xffffffffu;

__device__ inline u32 lane_of_thread() { return threadIdx.x % n_lanes; }
__device__ inline u32 warp_of_thread() { return threadIdx.x / n_lanes; }

template <class T>
__device__ inline T smaller(T a, T b) {
  return a < b ? a : b;
}
template <class T>
__device__ inline T larger(T a, T b) {
  return a > b ? a : b;
}
template <class T>
__device__ inline T limited(T value, T low, T high) {
  return smaller(larger(value, low), high);
}

// The n lowest bits set, n < 32 or n < 64.
__device__ inline u32 low_mask(u32 n) { return (1u << n) - 1; }
__device__ inline u64 low_mask_64(u32 n) { return (u64(1) << n) - 1; }

}  // namespace deltahub
