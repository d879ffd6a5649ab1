// How a entropy tells differences apart: half an octave of expected magnitudes is a class, and half an
// octave of magnitudes from 16 on a cell.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/isa.hpp"

DELTAHUB_BEGIN

inline constexpr std::int32_t least_class = -8, most_class = 80;
inline constexpr std::size_t n_estimate_classes = std::size_t(most_class - least_class) + 1;
inline constexpr std::int32_t estimate_linear = 16;  // magnitudes with a cell of their own
inline constexpr std::size_t n_estimate_symbols = 2 * (16 + 2 * 27);  // up to 2^31

// 2 * cell + sign, of a one's-complement magnitude.
inline std::int32_t estimate_symbol(std::int32_t delta) {
  const std::int32_t negative = delta >> 31, magnitude = delta ^ negative;
  // Exact in every rounding mode: below the two highest bits there is a zero. A float's exponent
  // and first mantissa digit are the octave and its half.
  const auto rounded = float(magnitude & ~(magnitude >> 2));
  const std::int32_t halves = std::int32_t(std::bit_cast<std::uint32_t>(rounded) >> 22);
  const std::int32_t is_high = -std::int32_t(magnitude >= estimate_linear);  // no branch: vectors
  const std::int32_t cell =
      (magnitude & ~is_high) | ((halves - 2 * 131 + estimate_linear) & is_high);
  return 2 * cell - negative;
}

// The raw digits of a symbol's cell.
constexpr unsigned estimate_width(std::size_t symbol) {
  const unsigned cell = unsigned(symbol / 2);
  return cell < unsigned(estimate_linear) ? 0 : (cell - unsigned(estimate_linear)) / 2 + 3;
}

DELTAHUB_END
