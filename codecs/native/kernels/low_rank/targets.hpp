// Targets and weights of the least-squares fit of products to words: see TargetRule.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/short_floats.hpp"
#include "kernels/low_rank/kernels.hpp"

DELTAHUB_BEGIN
namespace {

// 2^power, within the normal floats.
inline float power_of_two(std::int32_t power) {
  return std::bit_cast<float>(std::min(std::max(power + 127, 1), 254) << 23);
}

// The number of floats between zero and this one, with its sign; and its inverse.
inline std::int32_t ordinal(float number) {
  const auto bits = std::bit_cast<std::int32_t>(number);
  const std::int32_t magnitude = bits & 0x7fffffff, negative = bits >> 31;
  return (magnitude ^ negative) - negative;
}
inline float from_ordinal(std::int32_t count) {
  const std::int32_t negative = count >> 31;
  return std::bit_cast<float>(((count ^ negative) - negative) | (count & (-2147483647 - 1)));
}

struct Interval {
  float middle, half;
};

// The unrounded products of a word. A product is rounded to the dtype first; the result is then
// within half an ulp of the difference. At a distance of half an ulp, a tie, the word must be even.
template <class Words>
inline Interval before_rounding(float difference, float half, std::uint32_t word) {
  constexpr std::int32_t dropped = 23 - Words::mantissa_bits;
  if constexpr (dropped == 0) return {difference, half};
  const auto is_odd = std::int32_t(word & 1);
  std::int32_t low = ordinal(difference - half) + is_odd + ((1 << dropped) - 1);
  low = (low & -(1 << dropped)) - (1 << dropped >> 1);
  std::int32_t high = ordinal(difference + half) - is_odd;
  high = (high & -(1 << dropped)) + (1 << dropped >> 1);
  const float lowest = from_ordinal(low), highest = from_ordinal(high);
  return {(highest + lowest) / 2, (highest - lowest) / 2};
}

template <class Words, class Real, bool USES_INTERVALS, bool IS_ROUNDED>
void weighted_residuals_as(const std::uint8_t* words, const std::uint8_t* base,
                           const Real* products, std::size_t n, const TargetRule& rule,
                           float* weights, float* residuals) {
  using Word = typename Words::Word;
  constexpr std::int32_t below_first = middle_exponent<Words> + Words::mantissa_bits;
  const std::int32_t finest = rule.typical - rule.octaves, typical = rule.typical;
  const float margin = rule.margin, satisfied_weight = rule.satisfied_weight;
  for (std::size_t j = 0; j < n; ++j) {
    const std::uint32_t word = load<Word>(words + j * sizeof(Word));
    const Real away = difference<Words, Real>(word, load<Word>(base + j * sizeof(Word)));
    std::int32_t exponent =
        std::max(std::int32_t(word >> Words::mantissa_bits) & ((1 << Words::exponent_bits) - 1), 1);
    if constexpr (USES_INTERVALS) {
      Interval interval{float(away), 0.5f * power_of_two(exponent - below_first)};
      if (IS_ROUNDED) interval = before_rounding<Words>(interval.middle, interval.half, word);
      const float residual = interval.middle - float(products[j]);
      const float room =
          interval.half - margin * power_of_two(std::max(exponent, finest) - below_first);
      const float half = room > 0 ? room : 0;
      const float above = residual < half ? residual : half;
      const float moved = residual - (above > -half ? above : -half);
      // Without a branch, so that it is vectorized.
      const std::int32_t is_moved = -std::int32_t(moved != 0);
      const float one = std::bit_cast<float>(is_moved & std::bit_cast<std::int32_t>(1.0f));
      const float weight =
          power_of_two(2 * (typical - std::max(exponent, finest))) * (one + satisfied_weight);
      weights[j] = weight;
      residuals[j] = moved * weight;
    } else {
      if (IS_ROUNDED) {
        const auto bits = std::bit_cast<std::uint32_t>(float(products[j]));
        exponent =
            std::max(exponent, std::int32_t(bits >> 23 & 255) + middle_exponent<Words> - 127);
      }
      const float weight = power_of_two(2 * (typical - std::max(exponent, finest)));
      weights[j] = weight;
      residuals[j] = float((away - products[j]) * Real(weight));
    }
  }
}

template <class Words, class Real>
void weighted_residuals(const std::uint8_t* words, const std::uint8_t* base, const Real* products,
                        std::size_t n, const TargetRule& rule, float* weights, float* residuals) {
  const auto as = rule.uses_intervals
                      ? (rule.is_rounded ? weighted_residuals_as<Words, Real, true, true>
                                         : weighted_residuals_as<Words, Real, true, false>)
                      : (rule.is_rounded ? weighted_residuals_as<Words, Real, false, true>
                                         : weighted_residuals_as<Words, Real, false, false>);
  as(words, base, products, n, rule, weights, residuals);
}

// As weighted_residuals, for products in integers times `unit`, and with integer weights, so that
// sums are the same in any order. The weight is unit_weight for words as fine as 2^-octaves of the
// typical one or finer, a quarter of it for each octave coarser, and 0 beyond seven octaves. A
// satisfied word, one whose product is in its interval, has a sixteenth of its weight in sums of
// weights. The weight of word j is added to weights[j]; returns the sum of the weights.
template <class Words, bool USES_INTERVALS, bool IS_ROUNDED>
std::uint32_t integer_weighted_residuals_as(const std::uint8_t* words, const std::uint8_t* base,
                                            const std::int32_t* products, float unit, std::size_t n,
                                            const TargetRule& rule, float* residuals,
                                            std::uint32_t* weights) {
  using Word = typename Words::Word;
  constexpr std::int32_t below_first = middle_exponent<Words> + Words::mantissa_bits;
  const std::int32_t finest = rule.typical - rule.octaves;
  const float margin = rule.margin;
  std::uint32_t sum = 0;
  for (std::size_t j = 0; j < n; ++j) {
    const std::uint32_t word = load<Word>(words + j * sizeof(Word));
    const float away = difference<Words, float>(word, load<Word>(base + j * sizeof(Word)));
    const float product = float(products[j]) * unit;
    std::int32_t exponent =
        std::max(std::int32_t(word >> Words::mantissa_bits) & ((1 << Words::exponent_bits) - 1), 1);
    float residual = away - product;
    std::int32_t is_satisfied = 0;
    if constexpr (USES_INTERVALS) {
      Interval interval{away, 0.5f * power_of_two(exponent - below_first)};
      if (IS_ROUNDED) interval = before_rounding<Words>(interval.middle, interval.half, word);
      const float room =
          interval.half - margin * power_of_two(std::max(exponent, finest) - below_first);
      const float half = room > 0 ? room : 0;
      residual = interval.middle - product;
      const float below = residual < half ? residual : half;
      residual -= below > -half ? below : -half;
      is_satisfied = -std::int32_t(residual == 0);
    } else if constexpr (IS_ROUNDED) {
      const auto digits = std::bit_cast<std::uint32_t>(product);
      exponent =
          std::max(exponent, std::int32_t(digits >> 23 & 255) + middle_exponent<Words> - 127);
    }
    // An overflown difference counts as 0.
    const auto bits = std::bit_cast<std::uint32_t>(residual);
    residual = std::bit_cast<float>(bits & (0u - std::uint32_t((bits & 0x7fffffff) < 0x7f800000)));
    const std::int32_t above = std::max(exponent - finest, 0);
    const std::uint32_t whole = unit_weight >> std::min(2 * above, 31);
    const std::uint32_t weight = whole >> (4 & is_satisfied);
    residuals[j] = residual * (float(std::int32_t(whole)) / unit_weight);
    weights[j] += weight;
    sum += weight;
  }
  return sum;
}

template <class Words>
std::uint32_t integer_weighted_residuals(const std::uint8_t* words, const std::uint8_t* base,
                                         const std::int32_t* products, float unit, std::size_t n,
                                         const TargetRule& rule, float* residuals,
                                         std::uint32_t* weights) {
  const auto as = rule.uses_intervals
                      ? (rule.is_rounded ? integer_weighted_residuals_as<Words, true, true>
                                         : integer_weighted_residuals_as<Words, true, false>)
                      : (rule.is_rounded ? integer_weighted_residuals_as<Words, false, true>
                                         : integer_weighted_residuals_as<Words, false, false>);
  return as(words, base, products, unit, n, rule, residuals, weights);
}

}  // namespace
DELTAHUB_END
