// Encodes eight lanes at a time: the reverse of kernels/ans/decode_avx2.hpp.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/ans/bit_stream.hpp"
#include "kernels/ans/prefetch.hpp"
#include "kernels/ans/table_entries.hpp"
#include "kernels/kernels.hpp"
#include "kernels/simd/lanes_avx2.hpp"

#define DELTAHUB_HAS_ENCODE_ROUNDS

DELTAHUB_BEGIN
namespace {

// Eight encoding rows in two vectors: add_for_bits; and next_offset, width, is_missing.
struct EncodingRows {
  __m256i add_for_bits, fields;

  EncodingRows(const EncodingRow* rows, const std::uint16_t* row_indices) {
    static_assert(sizeof(EncodingRow) == 8);
    const auto row = [&](int k) {
      return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(rows + row_indices[k]));
    };
    __m128i halves[2][2];
    for (int half = 0; half < 2; ++half) {
      const __m128i a = _mm_unpacklo_epi32(row(4 * half), row(4 * half + 1));
      const __m128i b = _mm_unpacklo_epi32(row(4 * half + 2), row(4 * half + 3));
      halves[0][half] = _mm_unpacklo_epi64(a, b);
      halves[1][half] = _mm_unpackhi_epi64(a, b);
    }
    add_for_bits = pair_of(halves[0][0], halves[0][1]);
    fields = pair_of(halves[1][0], halves[1][1]);
  }
};

#ifndef __AVX512F__  // AVX-512 finds cells by table
#define DELTAHUB_HAS_ROW_INDICES

// Handles whole vectors and returns how many values those are; the caller handles the others. Only
// the shifts and the conversions to float need 32-bit elements.
inline std::size_t fast_row_indices(const std::uint8_t* values, const std::uint16_t* contexts,
                                    std::size_t n, std::uint16_t* out) {
  const __m256i zero = _mm256_setzero_si256();
  std::size_t j = 0;
  for (; j + 16 <= n; j += 16) {
    const auto load = [](const void* at) {
      return _mm256_loadu_si256(static_cast<const __m256i*>(at));
    };
    const __m256i value = load(values + 2 * j), context = load(contexts + j);
    const __m256i size = _mm256_xor_si256(value, _mm256_srai_epi16(value, 15));
    const __m256i shift = _mm256_and_si256(context, _mm256_set1_epi16(63));
    const __m256i low = _mm256_srlv_epi32(_mm256_unpacklo_epi16(size, zero),
                                          _mm256_unpacklo_epi16(shift, zero));
    const __m256i high = _mm256_srlv_epi32(_mm256_unpackhi_epi16(size, zero),
                                           _mm256_unpackhi_epi16(shift, zero));
    // A float's exponent is the octave, its first mantissa bit the half of the octave.
    const auto halves_of = [](__m256i magnitude) {
      return _mm256_srli_epi32(_mm256_castps_si256(_mm256_cvtepi32_ps(magnitude)), 22);
    };
    const __m256i magnitude = _mm256_packus_epi32(low, high);
    const __m256i halves = _mm256_packus_epi32(halves_of(low), halves_of(high));
    const __m256i cell = _mm256_blendv_epi8(
        magnitude, _mm256_sub_epi16(halves, _mm256_set1_epi16(2 * 131 - n_linear)),
        _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16(n_linear - 1)));
    const __m256i row_in_table =
        _mm256_or_si256(_mm256_slli_epi16(cell, 1), _mm256_srli_epi16(value, 15));
    const __m256i first = _mm256_mullo_epi16(_mm256_srli_epi16(context, max_table_log),
                                             _mm256_set1_epi16(short(rows_per_table)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + j), _mm256_add_epi16(first, row_in_table));
  }
  return j;
}
#endif

template <class Value>
inline __m256i load_as_32_bits(const std::uint8_t* values) {
  const auto* const at = reinterpret_cast<const __m128i*>(values);
  if constexpr (sizeof(Value) == 1)
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(at));
  else if constexpr (sizeof(Value) == 2)
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(at));
  else
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values));
}

// Pieces of a stream, in the order in which they are written.
struct Pieces {
  alignas(32) std::uint64_t bits[n_lanes] = {};
  alignas(32) std::uint64_t n_bits[n_lanes] = {};

  // Sets four pieces, the highest element first.
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

// Encodes whole rounds of 32 values, from the last of n to the first. The pieces of a round are
// written during the next round, which does not depend on them.
template <class Value>
void encode_rounds(ForwardBits& bits, const EncodingRow* rows, const std::uint16_t* next_states,
                   std::uint32_t* shared_states, const std::uint16_t* contexts,
                   const std::uint8_t* values, const std::uint16_t* row_indices, std::size_t n,
                   PrefetchTargets targets, std::uint32_t& missing) {
  constexpr int value_bits = 8 * int(sizeof(Value));
  constexpr int n_pieces = value_bits <= 16 ? 4 : 8;  // for eight values: two in a piece, or one
  Pieces both[2];
  __m256i states[4], seen = _mm256_setzero_si256();
  for (int v = 0; v < 4; ++v)
    states[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(shared_states) + v);
  for (std::size_t i = n; i > 0;) {
    i -= n_lanes;
    prefetch_round<Value>(targets, i);
    Pieces& pieces = both[i / n_lanes % 2];
    const Pieces& before = both[(i / n_lanes + 1) % 2];
#pragma GCC unroll 4
    for (int v = 3; v >= 0; --v) {
      const std::size_t at = i + 8 * std::size_t(v);
      const EncodingRows row(rows, row_indices + at);
      const __m256i context = _mm256_cvtepu16_epi32(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(contexts + at)));
      const __m256i shift = _mm256_and_si256(context, _mm256_set1_epi32(63));
      const __m256i width =
          _mm256_and_si256(_mm256_srli_epi32(row.fields, 16), _mm256_set1_epi32(255));
      const __m256i raw =
          _mm256_min_epi32(_mm256_add_epi32(width, shift), _mm256_set1_epi32(value_bits - 1));
      const __m256i state_bits =
          _mm256_srli_epi32(_mm256_add_epi32(states[v], row.add_for_bits), 16);
      const __m256i low = low_bits(states[v], state_bits);
      const __m256i raw_part = low_bits(load_as_32_bits<Value>(values + at * sizeof(Value)), raw);
      const __m256i first = _mm256_srai_epi32(_mm256_slli_epi32(row.fields, 16), 16);
      states[v] = _mm256_and_si256(
          _mm256_set1_epi32(0xffff),
          entries_at(next_states,
                     _mm256_add_epi32(_mm256_srlv_epi32(states[v], state_bits), first)));
      seen = _mm256_or_si256(seen, row.fields);
      const __m256i lengths = _mm256_add_epi32(state_bits, raw);
      if constexpr (value_bits <= 16) {
        // Two values in a piece: the value of the higher lane is first.
        const __m256i joined = _mm256_or_si256(low, _mm256_sllv_epi32(raw_part, state_bits));
        const __m256i even = _mm256_set1_epi64x(0xffffffff);
        const __m256i odd_lengths = _mm256_srli_epi64(lengths, 32);
        pieces.set(4 * (3 - v),
                   _mm256_or_si256(_mm256_srli_epi64(joined, 32),
                                   _mm256_sllv_epi64(_mm256_and_si256(joined, even), odd_lengths)),
                   _mm256_add_epi64(_mm256_and_si256(lengths, even), odd_lengths));
      } else {
        for (int half = 1; half >= 0; --half) {
          const auto wide = [half](__m256i x) {
            return _mm256_cvtepu32_epi64(half ? _mm256_extracti128_si256(x, 1)
                                              : _mm256_castsi256_si128(x));
          };
          pieces.set(
              8 * (3 - v) + 4 * (1 - half),
              _mm256_or_si256(wide(low), _mm256_sllv_epi64(wide(raw_part), wide(state_bits))),
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
