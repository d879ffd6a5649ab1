// Contexts, 32 words at a time; and the vectors of 16 columns for
// kernels/prediction/integer_product.hpp.
#pragma once

#include <immintrin.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/words.hpp"
#include "kernels/kernels.hpp"

#define DELTAHUB_HAS_CONTEXTS

DELTAHUB_BEGIN
namespace {

// The odd indices of 64 elements of 16 bits.
inline constexpr auto odd_indices = [] {
  std::array<std::uint16_t, 32> words{};
  for (std::uint16_t i = 0; i < 32; ++i) words[i] = 2 * i + 1;
  return words;
}();

// The exponents of 32 words, times four, at least four.
template <class Words>
inline __m512i exponents_times_4(const std::uint8_t* words) {
  __m512i high = _mm512_loadu_si512(words);  // the 16 highest bits of each word
  constexpr int mantissa_bits = Words::mantissa_bits - (Words::word_bits - 16);
  if constexpr (Words::word_bits == 32) {
    high = _mm512_permutex2var_epi16(high, _mm512_loadu_si512(odd_indices.data()),
                                     _mm512_loadu_si512(words + 64));
  }
  const __m512i four_times =
      _mm512_and_si512(_mm512_srli_epi16(high, mantissa_bits - 2),
                       _mm512_set1_epi16(((1 << Words::exponent_bits) - 1) * 4));
  return _mm512_max_epi16(four_times, _mm512_set1_epi16(4));
}

// Handles whole vectors and returns how many words those are; the caller handles the others.
template <class Words>
std::size_t fast_contexts(const std::uint8_t* words, std::size_t n, int scale,
                          const std::int16_t* columns, const ClassTable& classes, int last,
                          std::uint16_t* out) {
  const __m512i first_classes = _mm512_loadu_si512(classes.contexts);
  const __m512i other_classes = _mm512_loadu_si512(classes.contexts + 32);
  const __m512i row_scale = _mm512_set1_epi16(short(scale));
  const __m512i last_class = _mm512_set1_epi16(short(last));
  std::size_t j = 0;
  for (; j + 32 <= n; j += 32) {
    __m512i z = _mm512_sub_epi16(
        row_scale, exponents_times_4<Words>(words + j * sizeof(typename Words::Word)));
    if (columns) z = _mm512_add_epi16(z, _mm512_loadu_si512(columns + j));
    z = _mm512_min_epi16(_mm512_max_epi16(z, _mm512_setzero_si512()), last_class);
    _mm512_storeu_si512(out + j, _mm512_permutex2var_epi16(first_classes, z, other_classes));
  }
  return j;
}

// Sixteen columns of an integer product.
struct Columns {
  static constexpr std::size_t count = 16;

  static Columns loaded(const std::int16_t* pairs) { return {_mm512_loadu_si512(pairs)}; }
  static Columns all(std::int32_t pair) { return {_mm512_set1_epi32(pair)}; }
  void add_products(Columns a, Columns b) {
    vector = _mm512_dpwssd_epi32(vector, a.vector, b.vector);
  }
  void store(std::int32_t* out) const { _mm512_storeu_si512(out, vector); }

  __m512i vector;
};

}  // namespace
DELTAHUB_END
