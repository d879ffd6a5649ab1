// Prediction, 16 words at a time, by paths that handle nearly all words. Each path returns a mask
// of the words that it does not handle.
#pragma once

#include <immintrin.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/prediction/fast_range.hpp"

#define DELTAHUB_HAS_PREDICT
#define DELTAHUB_HAS_SCALED

DELTAHUB_BEGIN
namespace {

// Permutations of 16-bit elements: the first or last 16 of 32 words into the high halves of 32-bit
// elements; and the high or low halves of two vectors into one.
struct Halves {
  alignas(64) std::array<std::uint16_t, 32> to_first, to_last, from_high, from_low;
};
inline constexpr Halves halves = [] {
  Halves table{};
  for (std::uint16_t i = 0; i < 32; ++i) {
    table.to_first[i] = i / 2;
    table.to_last[i] = 16 + i / 2;
    table.from_high[i] = 2 * i + 1;
    table.from_low[i] = 2 * i;
  }
  return table;
}();

// The mask of the words that are in neither of two masks of 16 words.
inline std::uint32_t outside_of(__mmask16 low, __mmask16 high) {
  return ~(std::uint32_t(low) | std::uint32_t(high) << 16);
}

template <class Words>
class FastPrediction {
 public:
  explicit FastPrediction(std::int32_t floor) : range_(floor) {}

  bool exists() const { return range_.exists; }

  // Predicts 32 words. Returns a mask of the words outside the range, whose results in `out` are
  // arbitrary.
  std::uint32_t predict(const std::uint8_t* words, const std::int32_t* product,
                        std::uint8_t* out) const {
    const auto all = [](std::int32_t value) { return _mm512_set1_epi16(std::int16_t(value)); };
    const auto at = [](const auto& table) { return _mm512_load_si512(table.data()); };
    const auto is_within = [&](__m512i value, std::int32_t minimum, std::int32_t range) {
      return _mm512_cmple_epu16_mask(_mm512_sub_epi16(value, all(minimum)), all(range));
    };
    const __m512i both = _mm512_loadu_si512(words);
    __mmask32 are_inside =
        is_within(_mm512_and_si512(both, all(0x7fff)), range_.min_word, range_.max_word);
    constexpr __mmask32 high = 0xaaaaaaaa;
    const __m512i first = sums(_mm512_maskz_permutexvar_epi16(high, at(halves.to_first), both),
                               _mm512_loadu_si512(product));
    const __m512i last = sums(_mm512_maskz_permutexvar_epi16(high, at(halves.to_last), both),
                              _mm512_loadu_si512(product + 16));
    if constexpr (m == 7) {
      const __m512i sum = _mm512_permutex2var_epi16(first, at(halves.from_high), last);
      are_inside &= is_within(_mm512_and_si512(sum, all(0x7fff)), range_.min_sum, range_.max_sum);
      _mm512_storeu_si512(out, _mm512_add_epi16(sum, all(range_.back)));
      return ~are_inside;
    } else {
      __mmask16 are_low, are_rest;
      const __m512i low = word_of(first, are_low), rest = word_of(last, are_rest);
      _mm512_storeu_si512(out, _mm512_permutex2var_epi16(low, at(halves.from_low), rest));
      return ~are_inside | outside_of(are_low, are_rest);
    }
  }

 private:
  using Range = FastRange<Words>;
  static constexpr int m = Range::m, dropped_bits = Range::dropped_bits;

  static __m512i all_32(std::uint32_t value) { return _mm512_set1_epi32(std::int32_t(value)); }

  // The sums of words (in the high halves) and products, as floats rounded above their lowest
  // `dropped_bits` bits.
  __m512i sums(__m512i words, __m512i product) const {
    if constexpr (m != 7)  // the sign stays in the highest bit
      words = _mm512_and_si512(_mm512_srai_epi32(words, dropped_bits - 10),
                               all_32(0x80000000u | ((1u << (31 - (dropped_bits - 10))) - 1)));
    const __m512 integers =
        _mm512_castsi512_ps(_mm512_add_epi32(words, all_32(std::uint32_t(range_.to_integer))));
    const __m512i sum =
        _mm512_castps_si512(_mm512_add_ps(integers, _mm512_cvtepi32_ps(product)));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(sum, dropped_bits), all_32(1));
    return _mm512_add_epi32(_mm512_add_epi32(sum, all_32((1u << (dropped_bits - 1)) - 1)), odd);
  }
  // The words of such sums, each in the low bits of an element.
  __m512i word_of(__m512i sum, __mmask16& are_inside) const {
    constexpr std::uint32_t sign = 1u << (31 - dropped_bits);
    const __m512i rounded = _mm512_srli_epi32(sum, dropped_bits);
    const __m512i size = _mm512_and_si512(rounded, all_32(sign - 1));
    are_inside =
        _mm512_cmple_epu32_mask(_mm512_sub_epi32(size, all_32(std::uint32_t(range_.min_sum))),
                                all_32(std::uint32_t(range_.max_sum)));
    const __m512i own = _mm512_add_epi32(size, all_32(std::uint32_t(range_.back)));
    return _mm512_or_si512(
        _mm512_and_si512(own, all_32(0x7fff)),
        _mm512_and_si512(_mm512_srli_epi32(sum, 31 - 15), all_32(1u << 15)));
  }

  Range range_;
};

// BF16 words that are normal numbers. If the exponent of a word is below that of the unit, its
// significand is shifted right; if it is above, the product is. So each word is scaled to the
// exponent of the unit or below, and its sum scaled back. Float additions are exact up to 2^23,
// however a long product was rounded. For sums up to 2^29 they give the highest 24 bits to within
// three units of the last bit, in any rounding mode: two units from the product, because the sum
// is then at least three quarters of the product, and one from the sum. After rounding to eight
// bits this matters only near a half; such sums are outside the range, too.
class ScaledBf16 {
 public:
  explicit ScaledBf16(std::int32_t floor)
      : floor_(floor),
        min_exponent_(std::max(1, floor - guard)),
        exists_(floor >= 0 && floor < max_exponent) {}

  bool exists() const { return exists_; }

  // Predicts 32 words. Returns a mask of the words outside the range, whose results in `out` are
  // arbitrary.
  std::uint32_t predict(const std::uint8_t* words, const std::int32_t* product,
                        std::uint8_t* out) const {
    const __m512i to_first = _mm512_load_si512(halves.to_first.data());
    const __m512i to_last = _mm512_load_si512(halves.to_last.data());
    const __m512i both = _mm512_loadu_si512(words);
    const __m512i e = _mm512_and_si512(_mm512_srli_epi16(both, m), all(max_exponent));
    const __m512i high = _mm512_max_epi16(e, all(floor_));
    const __m512i down = _mm512_sub_epi16(high, all(floor_));
    const __m512i at_exponent = _mm512_slli_epi16(high, m);
    const __m512i scaled =
        _mm512_sub_epi16(_mm512_add_epi16(both, all(own << m)), at_exponent);
    constexpr __mmask32 high_halves = 0xaaaaaaaa, low_halves = 0x55555555;
    const __m512i first = rounded_sum(_mm512_maskz_permutexvar_epi16(high_halves, to_first, scaled),
                                      _mm512_maskz_permutexvar_epi16(low_halves, to_first, down),
                                      _mm512_loadu_si512(product));
    const __m512i last = rounded_sum(_mm512_maskz_permutexvar_epi16(high_halves, to_last, scaled),
                                     _mm512_maskz_permutexvar_epi16(low_halves, to_last, down),
                                     _mm512_loadu_si512(product + 16));
    const __m512i sum =
        _mm512_permutex2var_epi16(first, _mm512_load_si512(halves.from_high.data()), last);
    const __m512i rest =
        _mm512_permutex2var_epi16(first, _mm512_load_si512(halves.from_low.data()), last);
    const __m512i moved =
        _mm512_sub_epi16(_mm512_add_epi16(sum, at_exponent), all(own << m));
    _mm512_storeu_si512(out, moved);
    // A sum near a half has low bits near zero after the addition that rounds it.
    const __mmask32 are_long = _mm512_cmpgt_epu16_mask(sizes(sum), all(((127 + 23) << m) - 1));
    // Rounding may have carried: the exponent before it may be one less.
    return ~(is_within(e, min_exponent_, max_exponent - 1) &
             is_within(sizes(sum), 127 << m, ((127 + 29) << m) - 1) &
             ~_mm512_mask_cmple_epu16_mask(are_long, _mm512_add_epi16(rest, all(4)), all(7)) &
             is_within(_mm512_add_epi16(sizes(sum), at_exponent), (2 + own) << m,
                       ((max_exponent - 1 + own) << m) - 1));
  }

 private:
  static constexpr std::int32_t m = Bf16Words::mantissa_bits, guard = guard_bits(m),
                                dropped_bits = 23 - m;
  static constexpr std::int32_t max_exponent = (1 << Bf16Words::exponent_bits) - 1;
  // exponent offset of a float relative to words in units
  static constexpr std::int32_t own = 127 + m + guard;

  // Words (in the high halves) as floats with one exponent, plus the product, rounded to the bits
  // of a word.
  static __m512i rounded_sum(__m512i words, __m512i down, __m512i product) {
    const __m512 moves = _mm512_cvtepi32_ps(_mm512_srav_epi32(product, down));
    const __m512i sum = _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(words), moves));
    const __m512i odd =
        _mm512_and_si512(_mm512_srli_epi32(sum, dropped_bits), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_add_epi32(sum, _mm512_set1_epi32((1 << (dropped_bits - 1)) - 1)),
                            odd);
  }
  static __m512i all(std::int32_t value) { return _mm512_set1_epi16(std::int16_t(value)); }
  static __m512i sizes(__m512i words) { return _mm512_and_si512(words, all(0x7fff)); }
  static __mmask32 is_within(__m512i value, std::int32_t minimum, std::int32_t maximum) {
    return _mm512_cmple_epu16_mask(_mm512_sub_epi16(value, all(minimum)), all(maximum - minimum));
  }

  std::int32_t floor_, min_exponent_;
  bool exists_;
};

// Sixteen words, each in the low bits of an element, moved by the product. are_normal: the words
// of the normal path, which are normal numbers that are moved to normal numbers, by sums that are
// neither so small that no guard bit is left to round nor so large that they are inexact.
template <class Words>
inline __m512i moved_words(__m512i word, __m512i product, __m512i floor, __mmask16& are_normal) {
  constexpr int m = Words::mantissa_bits, guard = guard_bits(m);
  constexpr std::int32_t max_exponent = (1 << Words::exponent_bits) - 1;
  constexpr bool is_short = Words::word_bits == 16;
  constexpr std::int32_t largest = is_short ? (1 << 24) - 1 : (1 << 30) - 1;
  const auto all = [](std::int32_t value) { return _mm512_set1_epi32(value); };
  // Unsigned, so that negative values wrap and exceed any bound.
  const auto is_within = [&](__m512i value, std::int32_t bound) {
    return _mm512_cmple_epu32_mask(value, all(bound));
  };
  const __m512i one = all(1);
  const __m512i e = _mm512_and_si512(_mm512_srli_epi32(word, m), all(max_exponent));
  const __m512i high = _mm512_max_epi32(e, floor);
  const __m512i t = _mm512_srav_epi32(product, _mm512_sub_epi32(high, floor));
  const __m512i significand = _mm512_slli_epi32(
      _mm512_or_si512(_mm512_and_si512(word, all((1 << m) - 1)), all(1 << m)), guard);
  const __m512i x = _mm512_srlv_epi32(significand, _mm512_sub_epi32(high, e));
  const __mmask16 is_negative = _mm512_test_epi32_mask(word, all(1u << (Words::word_bits - 1)));
  const __m512i sum = _mm512_mask_sub_epi32(_mm512_add_epi32(t, x), is_negative, t, x);
  const __m512i size = _mm512_abs_epi32(sum);
  are_normal = is_within(_mm512_sub_epi32(e, one), max_exponent - 2) &
               is_within(_mm512_sub_epi32(size, one), largest - 1);
  __m512i magnitude, exponent, sign;
  if constexpr (is_short) {
    // The sum is small enough to be exact as a float, which gives its exponent and leading bits.
    constexpr int dropped_bits = 23 - m;
    const __m512i bits = _mm512_castps_si512(_mm512_cvtepi32_ps(size));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, dropped_bits), one);
    const __m512i rounded =
        _mm512_add_epi32(_mm512_add_epi32(bits, all((1 << (dropped_bits - 1)) - 1)), odd);
    const __m512i shifted = _mm512_sub_epi32(high, all(127 + m + guard));
    exponent = _mm512_add_epi32(_mm512_srli_epi32(bits, 23), shifted);
    magnitude =
        _mm512_add_epi32(_mm512_srli_epi32(rounded, dropped_bits), _mm512_slli_epi32(shifted, m));
    sign = _mm512_and_si512(_mm512_srli_epi32(sum, 16), all(1 << 15));
  } else {
    // The bit below the highest bit is cleared, so that rounding to a float keeps the exponent.
    const __m512i above = _mm512_castps_si512(
        _mm512_cvtepi32_ps(_mm512_andnot_si512(_mm512_srli_epi32(size, 1), size)));
    const __m512i length = _mm512_sub_epi32(_mm512_srli_epi32(above, 23), all(126));
    const __m512i dropped_bits = _mm512_sub_epi32(length, all(m + 1));
    const __m512i before = _mm512_sub_epi32(dropped_bits, one);  // the shift of the rounding half
    const __m512i half = _mm512_sllv_epi32(one, before);
    const __m512i odd = _mm512_and_si512(_mm512_srlv_epi32(size, dropped_bits), one);
    const __m512i rounded = _mm512_srlv_epi32(
        _mm512_add_epi32(_mm512_add_epi32(size, _mm512_sub_epi32(half, one)), odd), dropped_bits);
    exponent = _mm512_add_epi32(_mm512_sub_epi32(high, all(guard)), dropped_bits);
    magnitude =
        _mm512_add_epi32(_mm512_slli_epi32(_mm512_sub_epi32(exponent, one), m), rounded);
    sign = _mm512_and_si512(sum, all(INT32_MIN));
    are_normal &= is_within(_mm512_xor_si512(t, _mm512_slli_epi32(t, 1)), INT32_MAX) &
                  is_within(before, INT32_MAX);
  }
  are_normal &= is_within(_mm512_sub_epi32(exponent, one), max_exponent - 3);
  const __mmask16 is_still = _mm512_testn_epi32_mask(t, t);
  return _mm512_mask_mov_epi32(_mm512_or_si512(magnitude, sign), is_still, word);
}

// Predicts 32 words. Returns a mask of the words outside the normal path, whose results in `out`
// are arbitrary.
template <class Words>
inline std::uint32_t predict_normal(const std::uint8_t* words, const std::int32_t* product,
                                    std::int32_t floor, std::uint8_t* out) {
  const __m512i from = _mm512_set1_epi32(floor);
  const auto moved = [&](__m512i word, const std::int32_t* by, __mmask16& are_normal) {
    return moved_words<Words>(word, _mm512_loadu_si512(by), from, are_normal);
  };
  __mmask16 are_low, are_high;
  if constexpr (Words::word_bits == 16) {
    const auto half = [&](std::size_t k) {
      const auto* const at = reinterpret_cast<const __m256i*>(words) + k;
      return _mm512_cvtepu16_epi32(_mm256_loadu_si256(at));
    };
    const __m512i low = moved(half(0), product, are_low);
    const __m512i high = moved(half(1), product + 16, are_high);
    const __m512i from_low = _mm512_load_si512(halves.from_low.data());
    _mm512_storeu_si512(out, _mm512_permutex2var_epi16(low, from_low, high));
  } else {
    const __m512i low = moved(_mm512_loadu_si512(words), product, are_low);
    const __m512i high = moved(_mm512_loadu_si512(words + 64), product + 16, are_high);
    _mm512_storeu_si512(out, low);
    _mm512_storeu_si512(out + 64, high);
  }
  return outside_of(are_low, are_high);
}

}  // namespace
DELTAHUB_END
