// Prediction, eight words at a time, by two paths that handle nearly all words;
// kernels/prediction/prediction.hpp defines the result.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/prediction/fast_range.hpp"
#include "kernels/prediction/prediction.hpp"

#define DELTAHUB_HAS_PREDICT

DELTAHUB_BEGIN
namespace {

// Words of the normal path: normal numbers that are moved to normal numbers, by sums that are
// neither so small that no guard bit is left to round nor so large that they are inexact. Each
// field is the maximum, over all words so far, of an amount that must not exceed a bound; negative
// amounts wrap, and so exceed it.
struct NormalRange {
  __m256i exponent = _mm256_setzero_si256(), moved_exponent = _mm256_setzero_si256(),
          size = _mm256_setzero_si256(), product = _mm256_setzero_si256();

  static void update(__m256i& maximum, __m256i value) {
    maximum = _mm256_max_epu32(maximum, value);
  }
  static bool is_within(__m256i maximum, std::int32_t bound) {
    const __m256i limit = _mm256_set1_epi32(bound);
    return _mm256_movemask_epi8(_mm256_cmpeq_epi32(_mm256_max_epu32(maximum, limit), limit)) == -1;
  }
};

// Eight words, each in the low bits of an element, moved by the product.
template <class Words>
inline __m256i moved_words(__m256i word, __m256i product, __m256i floor, NormalRange& normal) {
  constexpr int m = Words::mantissa_bits, guard = guard_bits(m);
  constexpr bool is_short = Words::word_bits == 16;
  const auto all = [](std::int32_t value) { return _mm256_set1_epi32(value); };
  const __m256i one = all(1);
  const __m256i e =
      _mm256_and_si256(_mm256_srli_epi32(word, m), all((1 << Words::exponent_bits) - 1));
  const __m256i high = _mm256_max_epi32(e, floor);
  const __m256i t = _mm256_srav_epi32(product, _mm256_sub_epi32(high, floor));
  const __m256i significand = _mm256_slli_epi32(
      _mm256_or_si256(_mm256_and_si256(word, all((1 << m) - 1)), all(1 << m)), guard);
  const __m256i x = _mm256_srlv_epi32(significand, _mm256_sub_epi32(high, e));
  const __m256i side = is_short ? _mm256_slli_epi32(word, 16) : word;
  const __m256i sum = _mm256_add_epi32(_mm256_sign_epi32(x, _mm256_or_si256(side, one)), t);
  const __m256i size = _mm256_abs_epi32(sum);
  NormalRange::update(normal.exponent, _mm256_sub_epi32(e, one));
  NormalRange::update(normal.size, _mm256_sub_epi32(size, one));
  __m256i magnitude, exponent, sign;
  if constexpr (is_short) {
    // The sum is small enough to be exact as a float, which gives its exponent and leading bits.
    constexpr int dropped_bits = 23 - m;
    const __m256i bits = _mm256_castps_si256(_mm256_cvtepi32_ps(size));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, dropped_bits), one);
    const __m256i rounded =
        _mm256_add_epi32(_mm256_add_epi32(bits, all((1 << (dropped_bits - 1)) - 1)), odd);
    const __m256i shifted = _mm256_sub_epi32(high, all(127 + m + guard));
    exponent = _mm256_add_epi32(_mm256_srli_epi32(bits, 23), shifted);
    magnitude =
        _mm256_add_epi32(_mm256_srli_epi32(rounded, dropped_bits), _mm256_slli_epi32(shifted, m));
    sign = _mm256_and_si256(_mm256_srli_epi32(sum, 16), all(1 << 15));
  } else {
    // The bit below the highest bit is cleared, so that rounding to a float keeps the exponent.
    const __m256i above = _mm256_castps_si256(
        _mm256_cvtepi32_ps(_mm256_andnot_si256(_mm256_srli_epi32(size, 1), size)));
    const __m256i length = _mm256_sub_epi32(_mm256_srli_epi32(above, 23), all(126));
    const __m256i dropped_bits = _mm256_sub_epi32(length, all(m + 1));
    const __m256i before = _mm256_sub_epi32(dropped_bits, one);  // the shift of the rounding half
    const __m256i half = _mm256_sllv_epi32(one, before);
    const __m256i odd = _mm256_and_si256(_mm256_srlv_epi32(size, dropped_bits), one);
    const __m256i rounded = _mm256_srlv_epi32(
        _mm256_add_epi32(_mm256_add_epi32(size, _mm256_sub_epi32(half, one)), odd), dropped_bits);
    exponent = _mm256_add_epi32(_mm256_sub_epi32(high, all(guard)), dropped_bits);
    magnitude =
        _mm256_add_epi32(_mm256_slli_epi32(_mm256_sub_epi32(exponent, one), m), rounded);
    sign = _mm256_and_si256(sum, all(INT32_MIN));
    NormalRange::update(normal.product, _mm256_xor_si256(t, _mm256_slli_epi32(t, 1)));
    NormalRange::update(normal.product, before);
  }
  NormalRange::update(normal.moved_exponent, _mm256_sub_epi32(exponent, one));
  const __m256i is_still = _mm256_cmpeq_epi32(t, _mm256_setzero_si256());
  return _mm256_blendv_epi8(_mm256_or_si256(magnitude, sign), word, is_still);
}

// Predicts 32 words. Returns zero if all are words of the normal path; otherwise `out` is
// arbitrary.
template <class Words>
inline std::uint32_t predict_normal(const std::uint8_t* words, const std::int32_t* product,
                                    std::int32_t floor, std::uint8_t* out) {
  constexpr std::int32_t max_exponent = (1 << Words::exponent_bits) - 1;
  NormalRange normal;
  const __m256i from = _mm256_set1_epi32(floor);
  const auto moved = [&](std::size_t j, __m256i word) {
    const __m256i by = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(product + j));
    return moved_words<Words>(word, by, from, normal);
  };
  const auto* const in = reinterpret_cast<const __m256i*>(words);
  auto* const to = reinterpret_cast<__m256i*>(out);
  if constexpr (Words::word_bits == 16) {
    for (std::size_t v = 0; v < 2; ++v) {
      const __m256i both = _mm256_loadu_si256(in + v);
      const __m256i low = moved(16 * v, _mm256_cvtepu16_epi32(_mm256_castsi256_si128(both)));
      const __m256i high =
          moved(16 * v + 8, _mm256_cvtepu16_epi32(_mm256_extracti128_si256(both, 1)));
      _mm256_storeu_si256(to + v,
                          _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8));
    }
  } else {
    for (std::size_t v = 0; v < 4; ++v)
      _mm256_storeu_si256(to + v, moved(8 * v, _mm256_loadu_si256(in + v)));
  }
  constexpr std::int32_t largest_size = Words::word_bits == 16 ? (1 << 24) - 1 : (1 << 30) - 1;
  const bool are_normal = NormalRange::is_within(normal.exponent, max_exponent - 2) &&
                          NormalRange::is_within(normal.moved_exponent, max_exponent - 3) &&
                          NormalRange::is_within(normal.size, largest_size - 1) &&
                          NormalRange::is_within(normal.product, INT32_MAX);
  return are_normal ? 0 : ~std::uint32_t(0);
}

// The fast path: words in the range of kernels/prediction/fast_range.hpp, eight at a time.
template <class Words>
class FastPrediction {
 public:
  explicit FastPrediction(std::int32_t floor) : range_(floor) {}

  bool exists() const { return range_.exists; }

  // Predicts 32 words. Returns zero if all are in the range; otherwise `out` is arbitrary.
  std::uint32_t predict(const std::uint8_t* words, const std::int32_t* product,
                        std::uint8_t* out) const {
    const auto all = [](std::int32_t value) { return _mm256_set1_epi16(std::int16_t(value)); };
    __m256i largest_word = _mm256_setzero_si256(), largest_sum = largest_word;
    for (std::size_t v = 0; v < 2; ++v) {
      const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words) + v);
      const __m256i size = _mm256_and_si256(both, all(0x7fff));
      largest_word = _mm256_max_epu16(largest_word, _mm256_sub_epi16(size, all(range_.min_word)));
      const auto* const by = reinterpret_cast<const __m256i*>(product + 16 * v);
      const __m256i low = sums(_mm256_castsi256_si128(both), _mm256_loadu_si256(by), largest_sum);
      const __m256i high =
          sums(_mm256_extracti128_si256(both, 1), _mm256_loadu_si256(by + 1), largest_sum);
      __m256i moved = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
      if constexpr (m == 7) {
        const __m256i sum = _mm256_and_si256(moved, all(0x7fff));
        largest_sum = _mm256_max_epu16(largest_sum, _mm256_sub_epi16(sum, all(range_.min_sum)));
        moved = _mm256_add_epi16(moved, all(range_.back));
      }
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out) + v, moved);
    }
    bool are_inside = is_within(largest_word, range_.max_word);
    if constexpr (m == 7)
      are_inside = are_inside && is_within(largest_sum, range_.max_sum);
    else
      are_inside = are_inside && NormalRange::is_within(largest_sum, range_.max_sum);
    return are_inside ? 0 : ~std::uint32_t(0);
  }

 private:
  using Range = FastRange<Words>;
  static constexpr int m = Range::m, dropped_bits = Range::dropped_bits;

  static bool is_within(__m256i maximum, std::int32_t bound) {
    const __m256i limit = _mm256_set1_epi16(std::int16_t(bound));
    return _mm256_movemask_epi8(_mm256_cmpeq_epi16(_mm256_max_epu16(maximum, limit), limit)) == -1;
  }
  // Eight words, each in the low bits of an element. BF16: returns the rounded sums; else the
  // predicted words.
  __m256i sums(__m128i words, __m256i product, __m256i& maximum) const {
    const auto all = [](std::int32_t value) { return _mm256_set1_epi32(value); };
    __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16);
    if constexpr (m != 7)  // the sign stays in the highest bit
      bits = _mm256_and_si256(
          _mm256_srai_epi32(bits, dropped_bits - 10),
          all(std::int32_t(0x80000000u | ((1u << (31 - (dropped_bits - 10))) - 1))));
    const __m256 integers = _mm256_castsi256_ps(_mm256_add_epi32(bits, all(range_.to_integer)));
    const __m256i sum =
        _mm256_castps_si256(_mm256_add_ps(integers, _mm256_cvtepi32_ps(product)));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(sum, dropped_bits), all(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(_mm256_add_epi32(sum, all((1 << (dropped_bits - 1)) - 1)), odd),
        dropped_bits);
    if constexpr (m == 7) return rounded;
    constexpr std::int32_t sign = 1 << (31 - dropped_bits);
    const __m256i size = _mm256_and_si256(rounded, all(sign - 1));
    maximum = _mm256_max_epu32(maximum, _mm256_sub_epi32(size, all(range_.min_sum)));
    return _mm256_or_si256(
        _mm256_and_si256(_mm256_add_epi32(size, all(range_.back)), all(0x7fff)),
        _mm256_and_si256(_mm256_srli_epi32(rounded, 31 - dropped_bits - 15), all(1 << 15)));
  }

  Range range_;
};

}  // namespace
DELTAHUB_END
