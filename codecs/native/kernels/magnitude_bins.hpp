// Bins of magnitudes for planning: one for each of 0..15, then eight per octave. Wherever a cell
// ends at any shift, a bin ends too. The lowest bit of a bin is the sign.
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
// The bin of a delta, whose magnitude is its one's complement if it is negative. In a form that
// compilers vectorize.
inline std::int32_t bin_of_delta(std::int32_t delta) {
  const std::int32_t negative = delta >> 31, magnitude = delta ^ negative;
  // Exact in every rounding mode, because the bit below the four highest bits is zero. A float's
  // exponent is the octave, its first three mantissa bits the eighth of the octave.
  const auto rounded = float(magnitude & ~(magnitude >> 4));
  const auto eighths = std::int32_t(std::bit_cast<std::uint32_t>(rounded) >> 20);
  // no branch, so that it is vectorized
  const std::int32_t is_high = -std::int32_t(magnitude >= 8);
  return 2 * ((magnitude & ~is_high) | ((eighths - 8 * 129) & is_high)) - negative;
}

DELTAHUB_END
