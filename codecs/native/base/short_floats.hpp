// Bit patterns of short floats converted to float, for the low-rank search.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "base/words.hpp"

DELTAHUB_BEGIN
namespace {

template <class Words>
constexpr std::uint32_t infinite = ((1u << Words::exponent_bits) - 1) << Words::mantissa_bits;

// The value of a finite word.
template <class Words>
inline float number(std::uint32_t word) {
  if constexpr (Words::word_bits == 32) return std::bit_cast<float>(word);
  if constexpr (Words::exponent_bits == 8) return std::bit_cast<float>(word << 16);
  constexpr int mantissa_bits = Words::mantissa_bits,
                exponent_offset = 127 - middle_exponent<Words>;
  const std::uint32_t magnitude = word & std::uint32_t(Words::top - 1);
  const std::uint32_t normal =
      (magnitude << (23 - mantissa_bits)) + (std::uint32_t(exponent_offset) << 23);
  constexpr float smallest_subnormal =
      std::bit_cast<float>(std::uint32_t(exponent_offset + 1 - mantissa_bits) << 23);
  const auto subnormal =
      std::bit_cast<std::uint32_t>(float(std::int32_t(magnitude)) * smallest_subnormal);
  const std::uint32_t is_normal = 0u - std::uint32_t(magnitude >> mantissa_bits > 0);
  const std::uint32_t absolute = (normal & is_normal) | (subnormal & ~is_normal);
  return std::bit_cast<float>(absolute | (word & std::uint32_t(Words::top)) << 16);
}

// The value of `to` minus that of `from`; 0 if either is infinite or NaN. Has no branch, so that
// compilers vectorize it.
template <class Words, class Real>
inline Real difference(std::uint32_t to, std::uint32_t from) {
  using Bits = std::conditional_t<sizeof(Real) == 4, std::uint32_t, std::uint64_t>;
  const Bits are_finite = -Bits((to & infinite<Words>) != infinite<Words>) &
                          -Bits((from & infinite<Words>) != infinite<Words>);
  const Real exact = Real(number<Words>(to)) - Real(number<Words>(from));
  return std::bit_cast<Real>(std::bit_cast<Bits>(exact) & are_finite);
}

}  // namespace
DELTAHUB_END
