// Prediction: base plus product, rounded to the dtype. In integers, so that rounding modes and
// flush-to-zero have no effect.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/isa.hpp"
#include "base/words.hpp"

DELTAHUB_BEGIN

// The number of guard bits, by mantissa bits; zero for a dtype without prediction.
constexpr int guard_bits(int mantissa_bits) {
  return mantissa_bits == 7 ? 14 : mantissa_bits == 10 ? 11 : mantissa_bits == 23 ? 6 : 0;
}

namespace {

inline std::int32_t bit_length(std::uint32_t value) {
  // Exact in every rounding mode, because the bit below the highest bit is zero.
  const float above = float(std::int32_t(value & ~(value >> 1)));
  // For 2^31 the float is negative; the mask removes its sign.
  return std::max(std::int32_t(std::bit_cast<std::uint32_t>(above) >> 23 & 255) - 126, 0);
}

// The product is in units of the last guard bit at exponent `floor`; |product| < 2^30. A sum of 0
// is not a special case: it follows the same steps, and frames depend on their result.
template <class Words>
inline std::uint32_t predicted(std::uint32_t word, std::int32_t product, std::int32_t floor) {
  constexpr std::int32_t m = Words::mantissa_bits, guard = guard_bits(m);
  constexpr std::int32_t max_exponent = (1 << Words::exponent_bits) - 1;
  constexpr std::uint32_t top = std::uint32_t(1) << (Words::word_bits - 1);
  const std::int32_t field = std::int32_t(word >> m) & max_exponent;
  const std::uint32_t fraction = word & ((1u << m) - 1);
  const std::int32_t e = std::max(field, 1), high = std::max(e, floor);
  const std::int32_t t = std::clamp(product >> std::min(high - floor, 31),
                                    -(std::int32_t(1) << 30), (std::int32_t(1) << 30) - 1);
  const std::uint32_t significand = (fraction | std::uint32_t(field > 0) << m) << guard;
  const std::int32_t x = std::int32_t(significand >> std::min(high - e, 31));
  const std::int32_t sum = (word & top ? -x : x) + t;
  const std::uint32_t size = sum < 0 ? 0u - std::uint32_t(sum) : std::uint32_t(sum);
  const std::int32_t k = bit_length(size);
  const std::int32_t exponent = std::max(high + k - (m + 1 + guard), 1);
  const std::int32_t drop = exponent + guard - high;
  const std::int32_t down = std::max(drop, 0), up = std::max(-drop, 0);
  const std::uint32_t is_rounded = 0u - std::uint32_t(down > 0);
  const std::uint32_t rounding = ((1u << down >> 1) - 1 + (size >> down & 1)) & is_rounded;
  const std::uint32_t rounded = (size + rounding) >> down << up;
  const std::uint32_t magnitude = (std::uint32_t(exponent - 1) << m) + rounded;
  const std::uint32_t side = sum == 0 ? word : std::uint32_t(sum) >> 31 << (Words::word_bits - 1);
  const bool is_kept =
      // no branch, so that it is vectorized
      (field == max_exponent) | (t == 0) | (magnitude >= std::uint32_t(max_exponent) << m);
  return is_kept ? word : magnitude | (side & top);
}

// Rounds to n_bits significant bits, to nearest, ties to even, modulo 2^32.
inline void round_products(std::int32_t* products, std::size_t n, int n_bits) {
  for (std::size_t j = 0; j < n; ++j) {
    const auto product = std::uint32_t(products[j]);
    const std::uint32_t is_negative = 0u - (product >> 31);
    const std::uint32_t size = (product ^ is_negative) - is_negative;
    const std::int32_t down = std::max(bit_length(size) - n_bits, 0);
    const std::uint32_t is_rounded = 0u - std::uint32_t(down > 0);
    const std::uint32_t rounding = ((1u << down >> 1) - 1 + (size >> down & 1)) & is_rounded;
    const std::uint32_t rounded = (size + rounding) >> down << down;
    products[j] = std::int32_t((rounded ^ is_negative) - is_negative);
  }
}

}  // namespace
DELTAHUB_END
