// Bins of magnitudes, as planning counts them: 0..15 one by one, then eight an octave. Wherever a cell
// of any shift ends, a bin does. The sign is the lowest bit of a bin.
#pragma once

#include <bit>
#include <cstdint>

#include "base/isa.hpp"

DELTAHUB_BEGIN

template <class Wide>
constexpr unsigned bin_of(Wide magnitude, unsigned negative) {
  const unsigned step = unsigned(std::bit_width(Wide(magnitude | 8))) - 4;
  return 2 * (8 * step + unsigned(magnitude >> step)) + negative;
}
// The same of a one's-complement difference, as vectors do it.
inline std::int32_t bin_of_delta(std::int32_t delta) {
  const std::int32_t negative = delta >> 31, magnitude = delta ^ negative;
  // Exact in every rounding mode: below the four highest bits there is a zero. A float's exponent
  // and first three mantissa digits are the octave and its eighth.
  const auto rounded = float(magnitude & ~(magnitude >> 4));
  const auto eighths = std::int32_t(std::bit_cast<std::uint32_t>(rounded) >> 20);
  const std::int32_t is_high = -std::int32_t(magnitude >= 8);  // no branch: vectors
  return 2 * ((magnitude & ~is_high) | ((eighths - 8 * 129) & is_high)) - negative;
}

DELTAHUB_END
