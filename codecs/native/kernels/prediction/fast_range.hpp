// The bounds of words whose prediction is quick.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/prediction/prediction.hpp"

DELTAHUB_BEGIN
namespace {

// Words of 16 bits whose sum with the product floats add exactly: full significands of which the
// product's unit takes no digit, none above the unit's exponent, and sums of at most 23 digits. With
// a coarse unit nearly all are. The exponents are made those of integers and back by adding to them,
// so all is exact, whatever the rounding mode. A product too long for a float is rounded; but its sum
// with a word of 22 digits then has more than 23, and is refused.
template <class Words>
struct NearBounds {
  explicit NearBounds(std::int32_t floor)
      : to_integer((127 + m + guard - floor) * (1 << 23)),
        back((floor - m - guard - 127) * (1 << m)) {
    least_word = std::max(1, floor - guard) << m;
    most_word = ((floor + 1) << m) - 1 - least_word;
    const std::int32_t moved = back / (1 << m);
    // Rounding may have carried: before it the exponent was one less.
    const std::int32_t low = std::max(127, 2 - moved), high = std::min(149, most - 2 - moved);
    least_sum = low << m;
    most_sum = ((high + 1) << m) - 1 - least_sum;
    exist = low <= high && floor < most;
  }

  static constexpr std::int32_t m = Words::mantissa_bits, guard = guard_bits(m);
  static constexpr std::int32_t most = (1 << Words::exponent_bits) - 1;
  static constexpr int drop = 23 - m;

  std::int32_t to_integer, back;
  std::int32_t least_word, most_word, least_sum, most_sum;  // most: above the least
  bool exist;
};

}  // namespace
DELTAHUB_END
