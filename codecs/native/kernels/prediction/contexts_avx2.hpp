// Contexts of 32 words at a time; eight columns of the integer product.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "base/words.hpp"
#include "kernels/kernels.hpp"

#define DELTAHUB_HAS_CONTEXTS

DELTAHUB_BEGIN
namespace {

// The exponents of sixteen words, times four, at least four.
template <class Words>
inline __m256i four_exponents(const std::uint8_t* words) {
  const auto load_at = [&](int v) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words) + v);
  };
  constexpr int digits = Words::mantissa_bits - 2;
  constexpr int most = ((1 << Words::exponent_bits) - 1) * 4;
  __m256i exponents;
  if constexpr (Words::word_bits == 16) {
    exponents = _mm256_and_si256(_mm256_srli_epi16(load_at(0), digits), _mm256_set1_epi16(most));
  } else {
    const __m256i mask = _mm256_set1_epi32(most);
    const __m256i low = _mm256_and_si256(_mm256_srli_epi32(load_at(0), digits), mask);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi32(load_at(1), digits), mask);
    exponents = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
  }
  return _mm256_max_epi16(exponents, _mm256_set1_epi16(4));
}

// A table of 64 bytes.
struct Plane {
  __m256i parts[4];

  explicit Plane(const std::uint8_t* bytes) {
    for (int part = 0; part < 4; ++part)
      parts[part] = _mm256_broadcastsi128_si256(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes) + part));
  }
  // By 32 indices below 64: the lowest four digits choose within a part, the next two the part.
  __m256i at(__m256i index) const {
    const __m256i fifth = _mm256_slli_epi16(index, 3), sixth = _mm256_slli_epi16(index, 2);
    const auto chosen = [&](int part) {
      return _mm256_blendv_epi8(_mm256_shuffle_epi8(parts[part], index),
                                _mm256_shuffle_epi8(parts[part + 1], index), fifth);
    };
    return _mm256_blendv_epi8(chosen(0), chosen(2), sixth);
  }
};

// As many of the words as are whole vectors; the rest is the caller's. contexts_at(classes): their
// contexts, the low bytes and the high ones.
template <class Words, class ContextsAt>
std::size_t fast_contexts_by(const std::uint8_t* words, std::size_t n, int scale,
                             const std::int16_t* columns, int last, std::uint16_t* out,
                             ContextsAt&& contexts_at) {
  constexpr std::size_t size = sizeof(typename Words::Word);
  const __m256i from_row = _mm256_set1_epi16(short(scale));
  const __m256i most = _mm256_set1_epi8(char(last));
  std::size_t j = 0;
  for (; j + 32 <= n; j += 32) {
    __m256i z[2];
    for (int v = 0; v < 2; ++v) {
      z[v] = _mm256_sub_epi16(from_row, four_exponents<Words>(words + (j + 16 * v) * size));
      if (columns)
        z[v] = _mm256_add_epi16(
            z[v], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(columns + j + 16 * v)));
    }
    // Those below zero become zero. The two halves' bytes interleave by eights, and so do the
    // planes when they are put together.
    const auto [low, high] = contexts_at(_mm256_min_epu8(_mm256_packus_epi16(z[0], z[1]), most));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + j), _mm256_unpacklo_epi8(low, high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + j + 16), _mm256_unpackhi_epi8(low, high));
  }
  return j;
}

template <class Words>
std::size_t fast_contexts(const std::uint8_t* words, std::size_t n, int scale,
                          const std::int16_t* columns, const ClassTable& classes, int last,
                          std::uint16_t* out) {
  struct Two {
    __m256i low, high;
  };
  if (n < 32) return 0;
  if (classes.are_narrow) {
    const Plane both(classes.both);
    const __m256i of_shift = _mm256_set1_epi8(0x0f);
    return fast_contexts_by<Words>(words, n, scale, columns, last, out, [&](__m256i index) {
      const __m256i found = both.at(index);
      const __m256i table = _mm256_srli_epi16(_mm256_andnot_si256(of_shift, found), 2);
      return Two{_mm256_and_si256(found, of_shift), table};
    });
  }
  const Plane low(classes.low), high(classes.high);
  return fast_contexts_by<Words>(words, n, scale, columns, last, out, [&](__m256i index) {
    return Two{low.at(index), high.at(index)};
  });
}

// Eight columns of a product.
struct Columns {
  static constexpr std::size_t count = 8;

  static Columns loaded(const std::int16_t* pairs) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs))};
  }
  static Columns all(std::int32_t pair) { return {_mm256_set1_epi32(pair)}; }
  void add_products(Columns a, Columns b) {
    vector = _mm256_add_epi32(vector, _mm256_madd_epi16(a.vector, b.vector));
  }
  void store(std::int32_t* out) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), vector);
  }

  __m256i vector;
};

}  // namespace
DELTAHUB_END
