// Cost of counts that share a table, for planning. Sums are rounded, identically in all kernels.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/isa.hpp"
#include "kernels/kernels.hpp"

DELTAHUB_BEGIN
namespace {

// x * log2(x) for an integer x below 2^31, with an error of at most 2e-5 * x; 0 for 0. From the
// exponent of a float and its mantissa 1 + fraction: log2(1 + fraction) is `fraction` plus a
// correction that is zero at 0 and 1.
inline float times_own_log2(std::uint32_t count) {
  const auto x = float(std::int32_t(count));
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto exponent = float(std::int32_t(bits >> 23) - 127);
  const float fraction = std::bit_cast<float>((bits & 0x7fffff) | 0x3f800000) - 1;
  float correction = -0.04514857f;
  correction = correction * fraction + 0.14842581f;
  correction = correction * fraction - 0.26717897f;
  correction = correction * fraction + 0.44191698f;
  return x * (exponent + (fraction + fraction * (1 - fraction) * correction));
}

SharedCost shared_cost(const std::uint32_t* counts_a, const std::uint32_t* counts_b,
                       std::size_t n) {
  constexpr std::size_t lanes = shared_cost_lanes;
  float sums[lanes] = {};
  std::uint32_t used[lanes] = {};
  for (std::size_t j = 0; j < n; j += lanes) {
    for (std::size_t k = 0; k < lanes; ++k) {
      const std::uint32_t count = counts_a[j + k] + counts_b[j + k];
      sums[k] += times_own_log2(count);
      used[k] += count > 0;
    }
  }
#pragma GCC unroll 4
  for (std::size_t half = lanes / 2; half > 0; half /= 2)
    for (std::size_t k = 0; k < half; ++k) sums[k] += sums[k + half], used[k] += used[k + half];
  return {.own = sums[0], .n_used = used[0]};
}

}  // namespace
DELTAHUB_END
