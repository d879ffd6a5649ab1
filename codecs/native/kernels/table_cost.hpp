// What counts cost that share a table, for planning. Sums are rounded, but alike in all kernels.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/isa.hpp"
#include "kernels/kernels.hpp"

DELTAHUB_BEGIN
namespace {

// x * log2(x) of a whole number below 2^31, to 2e-5 of x; 0 of 0. From a float's exponent and its
// mantissa 1 + m: log2(1 + m) is m and a little more, which is nothing at both ends.
inline float times_own_log2(std::uint32_t count) {
  const auto x = float(std::int32_t(count));
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto exponent = float(std::int32_t(bits >> 23) - 127);
  const float m = std::bit_cast<float>((bits & 0x7fffff) | 0x3f800000) - 1;
  float more = -0.04514857f;
  more = more * m + 0.14842581f;
  more = more * m - 0.26717897f;
  more = more * m + 0.44191698f;
  return x * (exponent + (m + m * (1 - m) * more));
}

SharedCost shared_cost(const std::uint32_t* counts, const std::uint32_t* others, std::size_t n) {
  constexpr std::size_t together = shared_together;
  float sums[together] = {};
  std::uint32_t used[together] = {};
  for (std::size_t j = 0; j < n; j += together) {
    for (std::size_t k = 0; k < together; ++k) {
      const std::uint32_t count = counts[j + k] + others[j + k];
      sums[k] += times_own_log2(count);
      used[k] += count > 0;
    }
  }
#pragma GCC unroll 4
  for (std::size_t half = together / 2; half > 0; half /= 2)
    for (std::size_t k = 0; k < half; ++k) sums[k] += sums[k + half], used[k] += used[k + half];
  return {.own = sums[0], .n_used = used[0]};
}

}  // namespace
DELTAHUB_END
