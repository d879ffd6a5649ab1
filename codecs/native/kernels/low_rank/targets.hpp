// What words ask of the products that are added to them.
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

// How many floats a float is from zero, and back.
inline std::int32_t counted(float number) {
  const auto bits = std::bit_cast<std::int32_t>(number);
  const std::int32_t magnitude = bits & 0x7fffffff, negative = bits >> 31;
  return (magnitude ^ negative) - negative;
}
inline float uncounted(std::int32_t count) {
  const std::int32_t negative = count >> 31;
  return std::bit_cast<float>(((count ^ negative) - negative) | (count & (-2147483647 - 1)));
}

struct Interval {
  float middle, half;
};

// The numbers that round, in the dtype, to a difference that makes the word: differences within
// half an ulp do; at the very ends, ties, only where the word is even.
template <class Words>
inline Interval before_rounding(float difference, float half, std::uint32_t word) {
  constexpr std::int32_t dropped = 23 - Words::mantissa_bits;
  if constexpr (dropped == 0) return {difference, half};
  const auto is_odd = std::int32_t(word & 1);
  std::int32_t low = counted(difference - half) + is_odd + ((1 << dropped) - 1);
  low = (low & -(1 << dropped)) - (1 << dropped >> 1);
  std::int32_t high = counted(difference + half) - is_odd;
  high = (high & -(1 << dropped)) + (1 << dropped >> 1);
  const float lowest = uncounted(low), highest = uncounted(high);
  return {(highest + lowest) / 2, (highest - lowest) / 2};
}

template <class Words, class Real, bool IS_INSIDE, bool IS_ROUNDED>
void ask_as(const std::uint8_t* words, const std::uint8_t* base, const Real* products,
            std::size_t n, const AskedRule& rule, float* weights, float* pulls) {
  using Word = typename Words::Word;
  constexpr std::int32_t below_first = middle_exponent<Words> + Words::mantissa_bits;
  const std::int32_t finest = rule.typical - rule.octaves, typical = rule.typical;
  const float margin = rule.margin, inertia = rule.inertia;
  for (std::size_t j = 0; j < n; ++j) {
    const std::uint32_t word = load<Word>(words + j * sizeof(Word));
    const Real away = difference<Words, Real>(word, load<Word>(base + j * sizeof(Word)));
    std::int32_t exponent = std::max(
        std::int32_t(word >> Words::mantissa_bits) & ((1 << Words::exponent_bits) - 1), 1);
    if constexpr (IS_INSIDE) {
      Interval interval{float(away), 0.5f * power_of_two(exponent - below_first)};
      if (IS_ROUNDED) interval = before_rounding<Words>(interval.middle, interval.half, word);
      const float pull = interval.middle - float(products[j]);
      const float room = interval.half - margin * power_of_two(std::max(exponent, finest) -
                                                               below_first);
      const float half = room > 0 ? room : 0;
      const float above = pull < half ? pull : half;
      const float moved = pull - (above > -half ? above : -half);
      const std::int32_t is_moved = -std::int32_t(moved != 0);  // without a branch, for vectors
      const float one = std::bit_cast<float>(is_moved & std::bit_cast<std::int32_t>(1.0f));
      const float weight =
          power_of_two(2 * (typical - std::max(exponent, finest))) * (one + inertia);
      weights[j] = weight;
      pulls[j] = moved * weight;
    } else {
      if (IS_ROUNDED) {
        const auto bits = std::bit_cast<std::uint32_t>(float(products[j]));
        exponent = std::max(exponent, std::int32_t(bits >> 23 & 255) + middle_exponent<Words> - 127);
      }
      const float weight = power_of_two(2 * (typical - std::max(exponent, finest)));
      weights[j] = weight;
      pulls[j] = float((away - products[j]) * Real(weight));
    }
  }
}

template <class Words, class Real>
void ask(const std::uint8_t* words, const std::uint8_t* base, const Real* products, std::size_t n,
         const AskedRule& rule, float* weights, float* pulls) {
  const auto as = rule.is_inside
                      ? (rule.is_rounded ? ask_as<Words, Real, true, true>
                                         : ask_as<Words, Real, true, false>)
                      : (rule.is_rounded ? ask_as<Words, Real, false, true>
                                         : ask_as<Words, Real, false, false>);
  as(words, base, products, n, rule, weights, pulls);
}

// How far words pull at products of so many units: what `ask` says, but that weights are whole numbers,
// so that sums are the same in any order. They are whole_weight for words as fine as 2^-octaves of the
// typical one and finer ones, a quarter an octave above, and nothing beyond seven; a word that is content
// counts a sixteenth. weights[j] grows by that of word j; returns their sum.
template <class Words, bool IS_INSIDE, bool IS_ROUNDED>
std::uint32_t pull_as(const std::uint8_t* words, const std::uint8_t* base,
                      const std::int32_t* products, float unit, std::size_t n,
                      const AskedRule& rule, float* pulls, std::uint32_t* weights) {
  using Word = typename Words::Word;
  constexpr std::int32_t below_first = middle_exponent<Words> + Words::mantissa_bits;
  const std::int32_t finest = rule.typical - rule.octaves;
  const float margin = rule.margin;
  std::uint32_t sum = 0;
  for (std::size_t j = 0; j < n; ++j) {
    const std::uint32_t word = load<Word>(words + j * sizeof(Word));
    const float away = difference<Words, float>(word, load<Word>(base + j * sizeof(Word)));
    const float product = float(products[j]) * unit;
    std::int32_t exponent = std::max(
        std::int32_t(word >> Words::mantissa_bits) & ((1 << Words::exponent_bits) - 1), 1);
    float pull = away - product;
    std::int32_t is_content = 0;
    if constexpr (IS_INSIDE) {
      Interval interval{away, 0.5f * power_of_two(exponent - below_first)};
      if (IS_ROUNDED) interval = before_rounding<Words>(interval.middle, interval.half, word);
      const float room = interval.half - margin * power_of_two(std::max(exponent, finest) -
                                                               below_first);
      const float half = room > 0 ? room : 0;
      pull = interval.middle - product;
      const float below = pull < half ? pull : half;
      pull -= below > -half ? below : -half;
      is_content = -std::int32_t(pull == 0);
    } else if constexpr (IS_ROUNDED) {
      const auto digits = std::bit_cast<std::uint32_t>(product);
      exponent =
          std::max(exponent, std::int32_t(digits >> 23 & 255) + middle_exponent<Words> - 127);
    }
    // Differences may be greater than any number.
    const auto bits = std::bit_cast<std::uint32_t>(pull);
    pull = std::bit_cast<float>(bits & (0u - std::uint32_t((bits & 0x7fffffff) < 0x7f800000)));
    const std::int32_t above = std::max(exponent - finest, 0);
    const std::uint32_t whole = whole_weight >> std::min(2 * above, 31);
    const std::uint32_t weight = whole >> (4 & is_content);
    pulls[j] = pull * (float(std::int32_t(whole)) / whole_weight);
    weights[j] += weight;
    sum += weight;
  }
  return sum;
}

template <class Words>
std::uint32_t pull(const std::uint8_t* words, const std::uint8_t* base,
                   const std::int32_t* products, float unit, std::size_t n, const AskedRule& rule,
                   float* pulls, std::uint32_t* weights) {
  const auto as = rule.is_inside
                      ? (rule.is_rounded ? pull_as<Words, true, true> : pull_as<Words, true, false>)
                      : (rule.is_rounded ? pull_as<Words, false, true>
                                         : pull_as<Words, false, false>);
  return as(words, base, products, unit, n, rule, pulls, weights);
}

}  // namespace
DELTAHUB_END
