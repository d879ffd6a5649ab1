// Prediction, sixteen words at a time: of those that kernels/prediction/fast_range.hpp tells of, and of others as
// nearly all are. Both say which words are neither.
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

// Of 32 elements of 16 bits, where each goes: words to the high halves of one vector's elements, or of
// another's; and from two vectors back.
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

// Bits of what two masks of sixteen lack.
inline std::uint32_t others_of(__mmask16 low, __mmask16 high) {
  return ~(std::uint32_t(low) | std::uint32_t(high) << 16);
}

template <class Words>
class NearWords {
 public:
  explicit NearWords(std::int32_t floor) : bounds_(floor) {}

  bool exist() const { return bounds_.exist; }

  // 32 words. A bit for each one that is another, and in `out` arbitrary.
  std::uint32_t predict(const std::uint8_t* words, const std::int32_t* product,
                        std::uint8_t* out) const {
    const auto all = [](std::int32_t value) { return _mm512_set1_epi16(std::int16_t(value)); };
    const auto at = [](const auto& table) { return _mm512_load_si512(table.data()); };
    const auto is_within = [&](__m512i value, std::int32_t least, std::int32_t most) {
      return _mm512_cmple_epu16_mask(_mm512_sub_epi16(value, all(least)), all(most));
    };
    const __m512i both = _mm512_loadu_si512(words);
    __mmask32 are_near = is_within(_mm512_and_si512(both, all(0x7fff)), bounds_.least_word,
                                   bounds_.most_word);
    constexpr __mmask32 high = 0xaaaaaaaa;
    const __m512i first = sums(_mm512_maskz_permutexvar_epi16(high, at(halves.to_first), both),
                               _mm512_loadu_si512(product));
    const __m512i last = sums(_mm512_maskz_permutexvar_epi16(high, at(halves.to_last), both),
                              _mm512_loadu_si512(product + 16));
    if constexpr (m == 7) {
      const __m512i sum = _mm512_permutex2var_epi16(first, at(halves.from_high), last);
      are_near &= is_within(_mm512_and_si512(sum, all(0x7fff)), bounds_.least_sum,
                            bounds_.most_sum);
      _mm512_storeu_si512(out, _mm512_add_epi16(sum, all(bounds_.back)));
      return ~are_near;
    } else {
      __mmask16 are_low, are_rest;
      const __m512i low = word_of(first, are_low), rest = word_of(last, are_rest);
      _mm512_storeu_si512(out, _mm512_permutex2var_epi16(low, at(halves.from_low), rest));
      return ~are_near | others_of(are_low, are_rest);
    }
  }

 private:
  using Bounds = NearBounds<Words>;
  static constexpr int m = Bounds::m, drop = Bounds::drop;

  static __m512i all_32(std::uint32_t value) { return _mm512_set1_epi32(std::int32_t(value)); }

  // Of words in the high halves, as floats whose digits above the lowest `drop` are rounded.
  __m512i sums(__m512i words, __m512i product) const {
    if constexpr (m != 7)  // the sign stays where it is
      words = _mm512_and_si512(_mm512_srai_epi32(words, drop - 10),
                               all_32(0x80000000u | ((1u << (31 - (drop - 10))) - 1)));
    const __m512 integers =
        _mm512_castsi512_ps(_mm512_add_epi32(words, all_32(std::uint32_t(bounds_.to_integer))));
    const __m512i sum =
        _mm512_castps_si512(_mm512_add_ps(integers, _mm512_cvtepi32_ps(product)));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(sum, drop), all_32(1));
    return _mm512_add_epi32(_mm512_add_epi32(sum, all_32((1u << (drop - 1)) - 1)), odd);
  }
  // Words of such sums, each in the low bits of an element.
  __m512i word_of(__m512i sum, __mmask16& are_near) const {
    constexpr std::uint32_t sign = 1u << (31 - drop);
    const __m512i rounded = _mm512_srli_epi32(sum, drop);
    const __m512i size = _mm512_and_si512(rounded, all_32(sign - 1));
    are_near = _mm512_cmple_epu32_mask(
        _mm512_sub_epi32(size, all_32(std::uint32_t(bounds_.least_sum))),
        all_32(std::uint32_t(bounds_.most_sum)));
    const __m512i own = _mm512_add_epi32(size, all_32(std::uint32_t(bounds_.back)));
    return _mm512_or_si512(
        _mm512_and_si512(own, all_32(0x7fff)),
        _mm512_and_si512(_mm512_srli_epi32(sum, 31 - 15), all_32(1u << 15)));
  }

  Bounds bounds_;
};

// Words of BF16 whose exponents are those of full significands: the unit takes digits of those below
// it, and its product loses digits to those above. Each is made one of the unit's exponent or below,
// and its sum one of its own again. Floats add exactly up to 2^23, whatever a long product was
// rounded to; of a sum up to 2^29 they give the highest 24 digits to within three of the last one, in
// any rounding mode: two of a product's, as the sum's size is then no less than three quarters of the
// product's, and one of the sum's own. Rounded to eight digits that changes only what is next to a
// half, and such sums are others, too.
class ScaledBf16 {
 public:
  explicit ScaledBf16(std::int32_t floor)
      : floor_(floor), least_(std::max(1, floor - guard)), exist_(floor >= 0 && floor < most) {}

  bool exist() const { return exist_; }

  // 32 words. A bit for each one that is another, and in `out` arbitrary.
  std::uint32_t predict(const std::uint8_t* words, const std::int32_t* product,
                        std::uint8_t* out) const {
    const __m512i to_first = _mm512_load_si512(halves.to_first.data());
    const __m512i to_last = _mm512_load_si512(halves.to_last.data());
    const __m512i both = _mm512_loadu_si512(words);
    const __m512i e = _mm512_and_si512(_mm512_srli_epi16(both, m), all(most));
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
    // What was next to a half is next to nothing now.
    const __mmask32 are_long = _mm512_cmpgt_epu16_mask(sizes(sum), all(((127 + 23) << m) - 1));
    // Rounding may have carried: before it an exponent was one less.
    return ~(is_within(e, least_, most - 1) &
             is_within(sizes(sum), 127 << m, ((127 + 29) << m) - 1) &
             ~_mm512_mask_cmple_epu16_mask(are_long, _mm512_add_epi16(rest, all(4)), all(7)) &
             is_within(_mm512_add_epi16(sizes(sum), at_exponent), (2 + own) << m,
                       ((most - 1 + own) << m) - 1));
  }

 private:
  static constexpr std::int32_t m = Bf16Words::mantissa_bits, guard = guard_bits(m), drop = 23 - m;
  static constexpr std::int32_t most = (1 << Bf16Words::exponent_bits) - 1;
  static constexpr std::int32_t own = 127 + m + guard;  // of a float: the unit's words have it

  // Words in the high halves, as floats of one exponent, and the product, rounded to their digits.
  static __m512i rounded_sum(__m512i words, __m512i down, __m512i product) {
    const __m512 moves = _mm512_cvtepi32_ps(_mm512_srav_epi32(product, down));
    const __m512i sum = _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(words), moves));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(sum, drop), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_add_epi32(sum, _mm512_set1_epi32((1 << (drop - 1)) - 1)), odd);
  }
  static __m512i all(std::int32_t value) { return _mm512_set1_epi16(std::int16_t(value)); }
  static __m512i sizes(__m512i words) { return _mm512_and_si512(words, all(0x7fff)); }
  static __mmask32 is_within(__m512i value, std::int32_t least, std::int32_t most) {
    return _mm512_cmple_epu16_mask(_mm512_sub_epi16(value, all(least)), all(most - least));
  }

  std::int32_t floor_, least_;
  bool exist_;
};

// Sixteen words, each in the low bits of an element, and what they are moved to; are_usual: those
// that are finite, of a full significand, and are moved to such: no smaller than a few digits' worth
// of guard allow, no larger than sums are exact.
template <class Words>
inline __m512i moved_words(__m512i word, __m512i product, __m512i floor, __mmask16& are_usual) {
  constexpr int m = Words::mantissa_bits, guard = guard_bits(m);
  constexpr std::int32_t most = (1 << Words::exponent_bits) - 1;
  constexpr bool is_short = Words::word_bits == 16;
  constexpr std::int32_t largest = is_short ? (1 << 24) - 1 : (1 << 30) - 1;
  const auto all = [](std::int32_t value) { return _mm512_set1_epi32(value); };
  // Unsigned: what would be negative wraps, and is beyond any bound.
  const auto is_within = [&](__m512i value, std::int32_t bound) {
    return _mm512_cmple_epu32_mask(value, all(bound));
  };
  const __m512i one = all(1);
  const __m512i e = _mm512_and_si512(_mm512_srli_epi32(word, m), all(most));
  const __m512i high = _mm512_max_epi32(e, floor);
  const __m512i t = _mm512_srav_epi32(product, _mm512_sub_epi32(high, floor));
  const __m512i significand = _mm512_slli_epi32(
      _mm512_or_si512(_mm512_and_si512(word, all((1 << m) - 1)), all(1 << m)), guard);
  const __m512i x = _mm512_srlv_epi32(significand, _mm512_sub_epi32(high, e));
  const __mmask16 is_negative = _mm512_test_epi32_mask(word, all(1u << (Words::word_bits - 1)));
  const __m512i sum = _mm512_mask_sub_epi32(_mm512_add_epi32(t, x), is_negative, t, x);
  const __m512i size = _mm512_abs_epi32(sum);
  are_usual = is_within(_mm512_sub_epi32(e, one), most - 2) &
              is_within(_mm512_sub_epi32(size, one), largest - 1);
  __m512i magnitude, exponent, sign;
  if constexpr (is_short) {
    // The sum is small enough for a float, whose exponent and digits are its own.
    constexpr int drop = 23 - m;
    const __m512i bits = _mm512_castps_si512(_mm512_cvtepi32_ps(size));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, drop), one);
    const __m512i rounded =
        _mm512_add_epi32(_mm512_add_epi32(bits, all((1 << (drop - 1)) - 1)), odd);
    const __m512i shifted = _mm512_sub_epi32(high, all(127 + m + guard));
    exponent = _mm512_add_epi32(_mm512_srli_epi32(bits, 23), shifted);
    magnitude = _mm512_add_epi32(_mm512_srli_epi32(rounded, drop), _mm512_slli_epi32(shifted, m));
    sign = _mm512_and_si512(_mm512_srli_epi32(sum, 16), all(1 << 15));
  } else {
    // Below its highest digit a zero: so rounded, a float still has its exponent.
    const __m512i above = _mm512_castps_si512(
        _mm512_cvtepi32_ps(_mm512_andnot_si512(_mm512_srli_epi32(size, 1), size)));
    const __m512i length = _mm512_sub_epi32(_mm512_srli_epi32(above, 23), all(126));
    const __m512i drop = _mm512_sub_epi32(length, all(m + 1));
    const __m512i before = _mm512_sub_epi32(drop, one);  // so far the half is shifted
    const __m512i half = _mm512_sllv_epi32(one, before);
    const __m512i odd = _mm512_and_si512(_mm512_srlv_epi32(size, drop), one);
    const __m512i rounded = _mm512_srlv_epi32(
        _mm512_add_epi32(_mm512_add_epi32(size, _mm512_sub_epi32(half, one)), odd), drop);
    exponent = _mm512_add_epi32(_mm512_sub_epi32(high, all(guard)), drop);
    magnitude =
        _mm512_add_epi32(_mm512_slli_epi32(_mm512_sub_epi32(exponent, one), m), rounded);
    sign = _mm512_and_si512(sum, all(INT32_MIN));
    are_usual &= is_within(_mm512_xor_si512(t, _mm512_slli_epi32(t, 1)), INT32_MAX) &
                 is_within(before, INT32_MAX);
  }
  are_usual &= is_within(_mm512_sub_epi32(exponent, one), most - 3);
  const __mmask16 is_still = _mm512_testn_epi32_mask(t, t);
  return _mm512_mask_mov_epi32(_mm512_or_si512(magnitude, sign), is_still, word);
}

// 32 words. A bit for each one that is not as nearly all are, and in `out` arbitrary.
template <class Words>
inline std::uint32_t predict_usual(const std::uint8_t* words, const std::int32_t* product,
                                   std::int32_t floor, std::uint8_t* out) {
  const __m512i from = _mm512_set1_epi32(floor);
  const auto moved = [&](__m512i word, const std::int32_t* by, __mmask16& are_usual) {
    return moved_words<Words>(word, _mm512_loadu_si512(by), from, are_usual);
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
  return others_of(are_low, are_high);
}

}  // namespace
DELTAHUB_END
