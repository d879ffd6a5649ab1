// Eight lanes at a time: one gather for the entries, one (two of 64 bits for numbers of 32 bits)
// for the digits, whose places are a prefix sum.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "entries.hpp"
#include "kernels.hpp"
#include "stream.hpp"

#define DELTAHUB_HAS_NUMBERS

DELTAHUB_BEGIN
namespace {

inline __m256i prefix_sum(__m256i x) {
  x = _mm256_add_epi32(x, _mm256_slli_si256(x, 4));
  x = _mm256_add_epi32(x, _mm256_slli_si256(x, 8));
  const __m256i low_total = _mm256_shuffle_epi32(_mm256_permute2x128_si256(x, x, 0x08), 0xff);
  return _mm256_add_epi32(x, low_total);
}

inline __m256i low_digits(__m256i value, __m256i n_digits) {
  return _mm256_andnot_si256(_mm256_sllv_epi32(_mm256_set1_epi32(-1), n_digits), value);
}

// The low halves of eight values of 64 bits.
inline __m256i narrowed(__m256i low, __m256i high) {
  const __m256 both =
      _mm256_shuffle_ps(_mm256_castsi256_ps(low), _mm256_castsi256_ps(high), 0x88);
  return _mm256_permute4x64_epi64(_mm256_castps_si256(both), 0xd8);
}

template <class Number>
inline void store_numbers(std::uint8_t* out, const __m256i (&values)[4]) {
  if constexpr (sizeof(Number) == 4) {
    for (int v = 0; v < 4; ++v)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out) + v, values[v]);
  } else {
    const __m256i mask = _mm256_set1_epi32(0xffff);
    __m256i words[2];
    for (int v = 0; v < 2; ++v) {
      const __m256i packed = _mm256_packus_epi32(_mm256_and_si256(values[2 * v], mask),
                                                 _mm256_and_si256(values[2 * v + 1], mask));
      words[v] = _mm256_permute4x64_epi64(packed, 0xd8);
    }
    if constexpr (sizeof(Number) == 2) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), words[0]);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out) + 1, words[1]);
    } else {
      const __m256i low = _mm256_set1_epi16(0xff);
      const __m256i bytes = _mm256_packus_epi16(_mm256_and_si256(words[0], low),
                                                _mm256_and_si256(words[1], low));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                          _mm256_permute4x64_epi64(bytes, 0xd8));
    }
  }
}

// Rounds of 32 numbers while there is room; returns where it stopped.
template <class Number>
std::size_t fast_numbers(Kernels::Tables tables, BackwardBits& shared_bits,
                         std::uint32_t* shared_states, const std::uint16_t* contexts,
                         std::uint8_t* out, std::size_t i, std::size_t n) {
  constexpr int number_bits = 8 * int(sizeof(Number));
  constexpr int most_digits = 8 * (max_table_log + number_bits - 1);  // of eight numbers
  constexpr std::size_t back_bytes = (most_digits + 7) / 8;
  BackwardBits bits = shared_bits;
  const int* const entries = reinterpret_cast<const int*>(tables.entries);
  const __m128i log = _mm_cvtsi32_si128(tables.table_log);
  __m256i states[4];
  for (int v = 0; v < 4; ++v)
    states[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(shared_states) + v);
  for (; i + n_lanes <= n && bits.has_room(4 * most_digits); i += n_lanes) {
    __m256i values[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const __m256i context = _mm256_cvtepu16_epi32(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(contexts + i) + v));
      const __m256i table = _mm256_sll_epi32(_mm256_srli_epi32(context, 12), log);
      const __m256i entry = _mm256_i32gather_epi32(entries, _mm256_add_epi32(table, states[v]), 4);
      const __m256i digits = _mm256_and_si256(entry, _mm256_set1_epi32(15));
      const __m256i width = _mm256_and_si256(_mm256_srli_epi32(entry, 4), _mm256_set1_epi32(63));
      const __m256i shift = _mm256_and_si256(context, _mm256_set1_epi32(63));
      const __m256i raw =
          _mm256_min_epi32(_mm256_add_epi32(width, shift), _mm256_set1_epi32(number_bits - 1));
      const __m256i ends = prefix_sum(_mm256_add_epi32(digits, raw));
      const std::uint8_t* const from = bits.bytes() + bits.position() / 8 - back_bytes;
      const __m256i at = _mm256_sub_epi32(
          _mm256_set1_epi32(int(bits.position() % 8 + 8 * back_bytes)), ends);
      const __m256i byte = _mm256_srli_epi32(at, 3);
      const __m256i bit = _mm256_and_si256(at, _mm256_set1_epi32(7));
      __m256i window, rest;
      if constexpr (number_bits <= 16) {
        window = _mm256_srlv_epi32(
            _mm256_i32gather_epi32(reinterpret_cast<const int*>(from), byte, 1), bit);
        rest = _mm256_srlv_epi32(window, digits);
      } else {
        __m256i half[2], half_rest[2];
        for (int h = 0; h < 2; ++h) {
          const auto part = [h](__m256i x) {
            return h == 0 ? _mm256_castsi256_si128(x) : _mm256_extracti128_si256(x, 1);
          };
          half[h] = _mm256_srlv_epi64(
              _mm256_i32gather_epi64(reinterpret_cast<const long long*>(from), part(byte), 1),
              _mm256_cvtepu32_epi64(part(bit)));
          half_rest[h] = _mm256_srlv_epi64(half[h], _mm256_cvtepu32_epi64(part(digits)));
        }
        window = narrowed(half[0], half[1]);
        rest = narrowed(half_rest[0], half_rest[1]);
      }
      const __m256i next =
          _mm256_and_si256(_mm256_srli_epi32(entry, 10), _mm256_set1_epi32(2047));
      states[v] = _mm256_add_epi32(next, low_digits(window, digits));
      values[v] = _mm256_add_epi32(_mm256_sllv_epi32(_mm256_srai_epi32(entry, 21), raw),
                                   low_digits(rest, raw));
      bits.skip_unchecked(unsigned(_mm256_extract_epi32(ends, 7)));
    }
    store_numbers<Number>(out + i * sizeof(Number), values);
  }
  for (int v = 0; v < 4; ++v)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(shared_states) + v, states[v]);
  shared_bits = bits;
  return i;
}

}  // namespace
DELTAHUB_END
