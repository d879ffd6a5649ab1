// Contexts, 32 words at a time; and the vectors of eight columns for
// kernels/prediction/integer_product.hpp.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "base/words.hpp"
#include "kernels/kernels.hpp"

#define DELTAHUB_HAS_CONTEXTS

DELTAHUB_BEGIN
namespace {

// The exponents of 16 words, times four, at least four.
template <class Words>
inline __m256i exponents_times_4(const std::uint8_t* words) {
  const auto load_at = [&](int v) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words) + v);
  };
  constexpr int shift = Words::mantissa_bits - 2;
  constexpr int exponent_mask = ((1 << Words::exponent_bits) - 1) * 4;
  __m256i exponents;
  if constexpr (Words::word_bits == 16) {
    exponents =
        _mm256_and_si256(_mm256_srli_epi16(load_at(0), shift), _mm256_set1_epi16(exponent_mask));
  } else {
    const __m256i mask = _mm256_set1_epi32(exponent_mask);
    const __m256i low = _mm256_and_si256(_mm256_srli_epi32(load_at(0), shift), mask);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi32(load_at(1), shift), mask);
    exponents = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
  }
  return _mm256_max_epi16(exponents, _mm256_set1_epi16(4));
}

// A look-up table of 64 bytes.
struct ByteTable {
  __m256i parts[4];

  explicit ByteTable(const std::uint8_t* bytes) {
    for (int part = 0; part < 4; ++part)
      parts[part] = _mm256_broadcastsi128_si256(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes) + part));
  }
  // The bytes at 32 indices below 64: the lowest four bits of an index choose within a part, the
  // next two bits choose the part.
  __m256i at(__m256i index) const {
    const __m256i fifth = _mm256_slli_epi16(index, 3), sixth = _mm256_slli_epi16(index, 2);
    const auto chosen = [&](int part) {
      return _mm256_blendv_epi8(_mm256_shuffle_epi8(parts[part], index),
                                _mm256_shuffle_epi8(parts[part + 1], index), fifth);
    };
    return _mm256_blendv_epi8(chosen(0), chosen(2), sixth);
  }
};

// Handles whole vectors and returns how many words those are; the caller handles the others.
// contexts_at(classes): the low and the high bytes of the contexts.
template <class Words, class ContextsAt>
std::size_t fast_contexts_with(const std::uint8_t* words, std::size_t n, int scale,
                               const std::int16_t* columns, int last, std::uint16_t* out,
                               ContextsAt&& contexts_at) {
  constexpr std::size_t size = sizeof(typename Words::Word);
  const __m256i row_scale = _mm256_set1_epi16(short(scale));
  const __m256i last_class = _mm256_set1_epi8(char(last));
  std::size_t j = 0;
  for (; j + 32 <= n; j += 32) {
    __m256i z[2];
    for (int v = 0; v < 2; ++v) {
      z[v] = _mm256_sub_epi16(row_scale, exponents_times_4<Words>(words + (j + 16 * v) * size));
      if (columns)
        z[v] = _mm256_add_epi16(
            z[v], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(columns + j + 16 * v)));
    }
    // The pack instruction raises classes below zero to zero. It interleaves the bytes of the two
    // vectors by eights; so does the unpacking of the low and high bytes.
    const auto [low, high] =
        contexts_at(_mm256_min_epu8(_mm256_packus_epi16(z[0], z[1]), last_class));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + j), _mm256_unpacklo_epi8(low, high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + j + 16), _mm256_unpackhi_epi8(low, high));
  }
  return j;
}

template <class Words>
std::size_t fast_contexts(const std::uint8_t* words, std::size_t n, int scale,
                          const std::int16_t* columns, const ClassTable& classes, int last,
                          std::uint16_t* out) {
  struct Planes {
    __m256i low, high;
  };
  if (n < 32) return 0;
  if (classes.fits_packed) {
    const ByteTable packed(classes.packed);
    const __m256i shift_bits = _mm256_set1_epi8(0x0f);
    return fast_contexts_with<Words>(words, n, scale, columns, last, out, [&](__m256i index) {
      const __m256i found = packed.at(index);
      const __m256i table = _mm256_srli_epi16(_mm256_andnot_si256(shift_bits, found), 2);
      return Planes{_mm256_and_si256(found, shift_bits), table};
    });
  }
  const ByteTable low(classes.low), high(classes.high);
  return fast_contexts_with<Words>(words, n, scale, columns, last, out, [&](__m256i index) {
    return Planes{low.at(index), high.at(index)};
  });
}

// Eight columns of an integer product.
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
