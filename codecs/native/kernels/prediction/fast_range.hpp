// The range of words that the fast path of prediction handles.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/prediction/prediction.hpp"

DELTAHUB_BEGIN
namespace {

// 16-bit words for which a float addition gives the exact sum of word and product: normal numbers
// that are multiples of the unit of the product, with an exponent not above that of the unit, and
// a sum of at most 23 bits. With a coarse unit nearly all words are such. Their exponents are
// changed by additions, to those of integers and back, so that all is exact in every rounding
// mode. The conversion rounds a product that is too long for a float; but its sum with a word of
// 22 bits then has more than 23 bits, and is outside the range.
template <class Words>
struct FastRange {
  explicit FastRange(std::int32_t floor)
      : to_integer((127 + m + guard - floor) * (1 << 23)),
        back((floor - m - guard - 127) * (1 << m)) {
    min_word = std::max(1, floor - guard) << m;
    max_word = ((floor + 1) << m) - 1 - min_word;
    const std::int32_t moved = back / (1 << m);
    // Rounding may have carried: the exponent before it may be one less.
    const std::int32_t low = std::max(127, 2 - moved),
                       high = std::min(149, max_exponent - 2 - moved);
    min_sum = low << m;
    max_sum = ((high + 1) << m) - 1 - min_sum;
    exists = low <= high && floor < max_exponent;
  }

  static constexpr std::int32_t m = Words::mantissa_bits, guard = guard_bits(m);
  static constexpr std::int32_t max_exponent = (1 << Words::exponent_bits) - 1;
  static constexpr int dropped_bits = 23 - m;

  std::int32_t to_integer, back;
  // the upper bounds are relative to the lower ones
  std::int32_t min_word, max_word, min_sum, max_sum;
  bool exists;
};

}  // namespace
DELTAHUB_END
