// Contexts of 32 words at a time; eight columns of the integer product.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels.hpp"
#include "words.hpp"

#define DELTAHUB_HAS_CONTEXTS

DELTAHUB_BEGIN
namespace {

// The exponents of sixteen words, times four, at least four.
template <class Words>
inline __m256i four_exponents(const std::uint8_t* words) {
  const auto load_at = [&](int v) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words) + v);
  };
  __m256i exponents;
  if constexpr (Words::word_bits == 16) {
    exponents = _mm256_srli_epi16(load_at(0), Words::mantissa_bits);
  } else {
    const __m256i mask = _mm256_set1_epi32((1 << Words::exponent_bits) - 1);
    const __m256i low = _mm256_and_si256(_mm256_srli_epi32(load_at(0), Words::mantissa_bits), mask);
    const __m256i high =
        _mm256_and_si256(_mm256_srli_epi32(load_at(1), Words::mantissa_bits), mask);
    exponents = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
  }
  const __m256i mask = _mm256_set1_epi16((1 << Words::exponent_bits) - 1);
  exponents = _mm256_and_si256(exponents, mask);
  return _mm256_slli_epi16(_mm256_max_epi16(exponents, _mm256_set1_epi16(1)), 2);
}

// One plane of a table of 64 bytes, looked up by 32 indices below 64.
inline __m256i looked_up(const __m256i (&table)[4], __m256i index) {
  __m256i found = _mm256_setzero_si256();
#pragma GCC unroll 4
  for (int part = 0; part < 4; ++part) {
    // Indices outside of this part get their highest bit set, which gives zero.
    const __m256i own = _mm256_adds_epu8(
        _mm256_sub_epi8(index, _mm256_set1_epi8(char(16 * part))), _mm256_set1_epi8(0x70));
    found = _mm256_or_si256(found, _mm256_shuffle_epi8(table[part], own));
  }
  return found;
}

// As many of the words as are whole vectors; the rest is the caller's.
template <class Words>
std::size_t fast_contexts(const std::uint8_t* words, std::size_t n, int scale,
                          const std::int16_t* columns, const ClassTable& classes, int last,
                          std::uint16_t* out) {
  constexpr std::size_t size = sizeof(typename Words::Word);
  if (n < 32) return 0;
  __m256i low_plane[4], high_plane[4];
  for (int part = 0; part < 4; ++part) {
    const auto plane = [part](const std::uint8_t* bytes) {
      return _mm256_broadcastsi128_si256(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes) + part));
    };
    low_plane[part] = plane(classes.low);
    high_plane[part] = plane(classes.high);
  }
  const __m256i from_row = _mm256_set1_epi16(short(scale));
  const __m256i most = _mm256_set1_epi16(short(last));
  std::size_t j = 0;
  for (; j + 32 <= n; j += 32) {
    __m256i z[2];
    for (int v = 0; v < 2; ++v) {
      z[v] = _mm256_sub_epi16(from_row, four_exponents<Words>(words + (j + 16 * v) * size));
      if (columns)
        z[v] = _mm256_add_epi16(
            z[v], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(columns + j + 16 * v)));
      z[v] = _mm256_min_epi16(_mm256_max_epi16(z[v], _mm256_setzero_si256()), most);
    }
    // The two halves' bytes interleave by eights, and so do the planes when they are put together.
    const __m256i index = _mm256_packus_epi16(z[0], z[1]);
    const __m256i low = looked_up(low_plane, index), high = looked_up(high_plane, index);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + j), _mm256_unpacklo_epi8(low, high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + j + 16), _mm256_unpackhi_epi8(low, high));
  }
  return j;
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
