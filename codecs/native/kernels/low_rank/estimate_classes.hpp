// The classes and symbols of size estimates. A class is half an octave of expected magnitudes. A
// symbol is a sign and a cell: one magnitude below 16, half an octave of magnitudes above.
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

// 2 * cell + sign; magnitudes of negative differences are one's complements.
inline std::int32_t estimate_symbol(std::int32_t delta) {
  const std::int32_t negative = delta >> 31, magnitude = delta ^ negative;
  // The conversion is exact in every rounding mode, because the bit after the two highest ones is
  // cleared. A float's exponent and first mantissa bit are the octave and its half.
  const auto rounded = float(magnitude & ~(magnitude >> 2));
  const std::int32_t halves = std::int32_t(std::bit_cast<std::uint32_t>(rounded) >> 22);
  // Without a branch, so that it is vectorized.
  const std::int32_t is_high = -std::int32_t(magnitude >= estimate_linear);
  const std::int32_t cell =
      (magnitude & ~is_high) | ((halves - 2 * 131 + estimate_linear) & is_high);
  return 2 * cell - negative;
}

// The raw bits of a symbol's cell.
constexpr unsigned estimate_width(std::size_t symbol) {
  const unsigned cell = unsigned(symbol / 2);
  return cell < unsigned(estimate_linear) ? 0 : (cell - unsigned(estimate_linear)) / 2 + 3;
}

DELTAHUB_END
