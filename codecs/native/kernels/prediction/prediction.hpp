// Base plus product, rounded to the dtype, in integers: no rounding mode or flush-to-zero matters.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/isa.hpp"
#include "base/words.hpp"

DELTAHUB_BEGIN

// Guard digits, by mantissa digits; zero: a dtype without prediction.
constexpr int guard_bits(int mantissa_bits) {
  return mantissa_bits == 7 ? 14 : mantissa_bits == 10 ? 11 : mantissa_bits == 23 ? 6 : 0;
}

namespace {

inline std::int32_t bit_length(std::uint32_t value) {
  // Exact in every rounding mode: below the highest bit of such a number there is a zero.
  const float above = float(std::int32_t(value & ~(value >> 1)));
  // Of 2^31 alone the float is negative; its sign is not looked at.
  return std::max(std::int32_t(std::bit_cast<std::uint32_t>(above) >> 23 & 255) - 126, 0);
}

// |product| below 2^30 counts in units of the last guard digit at exponent `floor`. A sum of nothing
// has no digits, which does not make it zero: frames are written with what these steps make of it.
template <class Words>
inline std::uint32_t predicted(std::uint32_t word, std::int32_t product, std::int32_t floor) {
  constexpr std::int32_t m = Words::mantissa_bits, guard = guard_bits(m);
  constexpr std::int32_t most = (1 << Words::exponent_bits) - 1;
  constexpr std::uint32_t top = std::uint32_t(1) << (Words::word_bits - 1);
  const std::int32_t field = std::int32_t(word >> m) & most;
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
  const std::uint32_t has_half = 0u - std::uint32_t(down > 0);
  const std::uint32_t half = ((1u << down >> 1) - 1 + (size >> down & 1)) & has_half;
  const std::uint32_t rounded = (size + half) >> down << up;
  const std::uint32_t magnitude = (std::uint32_t(exponent - 1) << m) + rounded;
  const std::uint32_t side = sum == 0 ? word : std::uint32_t(sum) >> 31 << (Words::word_bits - 1);
  const bool is_kept =
      (field == most) | (t == 0) | (magnitude >= std::uint32_t(most) << m);  // no branch: vectors
  return is_kept ? word : magnitude | (side & top);
}

// To nearest, ties to even, modulo 2^32.
inline void round_products(std::int32_t* products, std::size_t n, int digits) {
  for (std::size_t j = 0; j < n; ++j) {
    const auto product = std::uint32_t(products[j]);
    const std::uint32_t is_negative = 0u - (product >> 31);
    const std::uint32_t size = (product ^ is_negative) - is_negative;
    const std::int32_t down = std::max(bit_length(size) - digits, 0);
    const std::uint32_t has_half = 0u - std::uint32_t(down > 0);
    const std::uint32_t half = ((1u << down >> 1) - 1 + (size >> down & 1)) & has_half;
    const std::uint32_t rounded = (size + half) >> down << down;
    products[j] = std::int32_t((rounded ^ is_negative) - is_negative);
  }
}

}  // namespace
DELTAHUB_END
