// Bins of magnitudes, as planning counts them: 0..31 one by one, then sixteen an octave: fine
// enough to hold the cells of every shift. The sign is the lowest bit of a bin.
#pragma once

#include <bit>
#include <cstdint>

#include "isa.hpp"

DELTAHUB_BEGIN

template <class Wide>
constexpr unsigned bin_of(Wide magnitude, unsigned negative) {
  const unsigned step = unsigned(std::bit_width(Wide(magnitude | 16))) - 5;
  return 2 * (16 * step + unsigned(magnitude >> step)) + negative;
}
// The same of a one's-complement difference, as vectors do it.
inline std::int32_t bin_of_delta(std::int32_t delta) {
  const std::int32_t negative = delta >> 31, magnitude = delta ^ negative;
  // Exact in every rounding mode: below the five highest bits there is a zero. A float's exponent
  // and first four mantissa digits are the octave and its sixteenth.
  const auto rounded = float(magnitude & ~(magnitude >> 5));
  const auto sixteenths = std::int32_t(std::bit_cast<std::uint32_t>(rounded) >> 19);
  const std::int32_t is_high = -std::int32_t(magnitude >= 16);  // no branch: vectors
  return 2 * ((magnitude & ~is_high) | ((sixteenths - 16 * 130) & is_high)) - negative;
}

DELTAHUB_END
