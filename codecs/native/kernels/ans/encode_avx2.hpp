// Encoding, eight lanes at a time: the mirror of kernels/ans/decode_avx2.hpp.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/ans/bit_stream.hpp"
#include "kernels/ans/prefetch.hpp"
#include "kernels/ans/table_entries.hpp"
#include "kernels/kernels.hpp"
#include "kernels/simd/lanes_avx2.hpp"

#define DELTAHUB_HAS_WRITE

DELTAHUB_BEGIN
namespace {

// Eight rows, their halves apart: what is added for the digits; and next state, width, missing.
struct Rows {
  __m256i add_for_digits, rest;

  Rows(const Row* rows, const std::uint16_t* places) {
    static_assert(sizeof(Row) == 8);
    const auto row = [&](int k) {
      return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(rows + places[k]));
    };
    __m128i halves[2][2];
    for (int half = 0; half < 2; ++half) {
      const __m128i a = _mm_unpacklo_epi32(row(4 * half), row(4 * half + 1));
      const __m128i b = _mm_unpacklo_epi32(row(4 * half + 2), row(4 * half + 3));
      halves[0][half] = _mm_unpacklo_epi64(a, b);
      halves[1][half] = _mm_unpackhi_epi64(a, b);
    }
    add_for_digits = pair_of(halves[0][0], halves[0][1]);
    rest = pair_of(halves[1][0], halves[1][1]);
  }
};

#ifndef __AVX512F__  // which looks cells up
#define DELTAHUB_HAS_SHORT_PLACES

// As many places as are whole vectors; the rest is the caller's. Only the shifts and the conversions
// need 32 bits a number.
inline std::size_t fast_short_places(const std::uint8_t* numbers, const std::uint16_t* contexts,
                                     std::size_t n, std::uint16_t* out) {
  const __m256i zero = _mm256_setzero_si256();
  std::size_t j = 0;
  for (; j + 16 <= n; j += 16) {
    const auto load = [](const void* at) {
      return _mm256_loadu_si256(static_cast<const __m256i*>(at));
    };
    const __m256i number = load(numbers + 2 * j), context = load(contexts + j);
    const __m256i size = _mm256_xor_si256(number, _mm256_srai_epi16(number, 15));
    const __m256i shift = _mm256_and_si256(context, _mm256_set1_epi16(63));
    const __m256i low = _mm256_srlv_epi32(_mm256_unpacklo_epi16(size, zero),
                                          _mm256_unpacklo_epi16(shift, zero));
    const __m256i high = _mm256_srlv_epi32(_mm256_unpackhi_epi16(size, zero),
                                           _mm256_unpackhi_epi16(shift, zero));
    // A float's exponent and first mantissa digit are the octave and its half.
    const auto halves_of = [](__m256i magnitude) {
      return _mm256_srli_epi32(_mm256_castps_si256(_mm256_cvtepi32_ps(magnitude)), 22);
    };
    const __m256i magnitude = _mm256_packus_epi32(low, high);
    const __m256i halves = _mm256_packus_epi32(halves_of(low), halves_of(high));
    const __m256i cell = _mm256_blendv_epi8(
        magnitude, _mm256_sub_epi16(halves, _mm256_set1_epi16(2 * 131 - n_linear)),
        _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16(n_linear - 1)));
    const __m256i place =
        _mm256_or_si256(_mm256_slli_epi16(cell, 1), _mm256_srli_epi16(number, 15));
    const __m256i first = _mm256_mullo_epi16(_mm256_srli_epi16(context, max_table_log),
                                             _mm256_set1_epi16(short(n_places)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + j), _mm256_add_epi16(first, place));
  }
  return j;
}
#endif

template <class Number>
inline __m256i load_numbers(const std::uint8_t* numbers) {
  const auto* const at = reinterpret_cast<const __m128i*>(numbers);
  if constexpr (sizeof(Number) == 1)
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(at));
  else if constexpr (sizeof(Number) == 2)
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(at));
  else
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(numbers));
}

// Pieces of a stream, in the order in which they are written.
struct Pieces {
  alignas(32) std::uint64_t bits[n_lanes] = {};
  alignas(32) std::uint64_t n_bits[n_lanes] = {};

  // Four pieces, the highest element first.
  void set(int at, __m256i values, __m256i lengths) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(bits + at),
                       _mm256_permute4x64_epi64(values, 0x1b));
    _mm256_store_si256(reinterpret_cast<__m256i*>(n_bits + at),
                       _mm256_permute4x64_epi64(lengths, 0x1b));
  }
  template <int COUNT>
  void put(ForwardBits& out, int at) const {
#pragma GCC unroll 8
    for (int k = at; k < at + COUNT; ++k) out.put(bits[k], unsigned(n_bits[k]));
  }
};

// Whole rounds of 32 numbers, from the last of n to the first. A round's pieces are put into the
// stream beside the work on the next round, which does not wait for them.
template <class Number>
void fast_write(ForwardBits& bits, const Row* rows, const std::uint16_t* next_states,
                std::uint32_t* shared_states, const std::uint16_t* contexts,
                const std::uint8_t* numbers, const std::uint16_t* places, std::size_t n,
                Ahead ahead, std::uint32_t& missing) {
  constexpr int number_bits = 8 * int(sizeof(Number));
  constexpr int n_pieces = number_bits <= 16 ? 4 : 8;  // of eight numbers: two a piece, or one
  Pieces both[2];
  __m256i states[4], seen = _mm256_setzero_si256();
  for (int v = 0; v < 4; ++v)
    states[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(shared_states) + v);
  for (std::size_t i = n; i > 0;) {
    i -= n_lanes;
    ask_for_round<Number>(ahead, i);
    Pieces& pieces = both[i / n_lanes % 2];
    const Pieces& before = both[(i / n_lanes + 1) % 2];
#pragma GCC unroll 4
    for (int v = 3; v >= 0; --v) {
      const std::size_t at = i + 8 * std::size_t(v);
      const Rows row(rows, places + at);
      const __m256i context = _mm256_cvtepu16_epi32(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(contexts + at)));
      const __m256i shift = _mm256_and_si256(context, _mm256_set1_epi32(63));
      const __m256i width =
          _mm256_and_si256(_mm256_srli_epi32(row.rest, 16), _mm256_set1_epi32(255));
      const __m256i raw =
          _mm256_min_epi32(_mm256_add_epi32(width, shift), _mm256_set1_epi32(number_bits - 1));
      const __m256i digits =
          _mm256_srli_epi32(_mm256_add_epi32(states[v], row.add_for_digits), 16);
      const __m256i low = low_digits(states[v], digits);
      const __m256i rest = low_digits(load_numbers<Number>(numbers + at * sizeof(Number)), raw);
      const __m256i first = _mm256_srai_epi32(_mm256_slli_epi32(row.rest, 16), 16);
      states[v] = _mm256_and_si256(
          _mm256_set1_epi32(0xffff),
          entries_at(next_states, _mm256_add_epi32(_mm256_srlv_epi32(states[v], digits), first)));
      seen = _mm256_or_si256(seen, row.rest);
      const __m256i lengths = _mm256_add_epi32(digits, raw);
      if constexpr (number_bits <= 16) {
        // Two numbers a piece: the one of the higher lane comes first.
        const __m256i values = _mm256_or_si256(low, _mm256_sllv_epi32(rest, digits));
        const __m256i even = _mm256_set1_epi64x(0xffffffff);
        const __m256i odd_lengths = _mm256_srli_epi64(lengths, 32);
        pieces.set(4 * (3 - v),
                   _mm256_or_si256(_mm256_srli_epi64(values, 32),
                                   _mm256_sllv_epi64(_mm256_and_si256(values, even), odd_lengths)),
                   _mm256_add_epi64(_mm256_and_si256(lengths, even), odd_lengths));
      } else {
        for (int half = 1; half >= 0; --half) {
          const auto wide = [half](__m256i x) {
            return _mm256_cvtepu32_epi64(half ? _mm256_extracti128_si256(x, 1)
                                              : _mm256_castsi256_si128(x));
          };
          pieces.set(8 * (3 - v) + 4 * (1 - half),
                     _mm256_or_si256(wide(low), _mm256_sllv_epi64(wide(rest), wide(digits))),
                     wide(lengths));
        }
      }
      before.put<n_pieces>(bits, n_pieces * (3 - v));
    }
  }
  for (int k = 0; k < 4 && n > 0; ++k) both[0].put<n_pieces>(bits, n_pieces * k);
  for (int v = 0; v < 4; ++v)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(shared_states) + v, states[v]);
  missing |= std::uint32_t(_mm256_movemask_epi8(_mm256_cmpgt_epi32(
      _mm256_srli_epi32(seen, 24), _mm256_setzero_si256())));
}

}  // namespace
DELTAHUB_END
