// Decodes eight lanes at a time. The bits of four values (of two if a value has 32 bits) lie
// within 16 bytes: one load reads them, and a shuffle gives each value the bytes in which its bits
// begin.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/ans/bit_stream.hpp"
#include "kernels/ans/prefetch.hpp"
#include "kernels/ans/table_entries.hpp"
#include "kernels/kernels.hpp"
#include "kernels/simd/lanes_avx2.hpp"

#define DELTAHUB_HAS_DECODE_ROUNDS

DELTAHUB_BEGIN
namespace {

template <class Value>
inline void store_values(std::uint8_t* out, const __m256i (&values)[4]) {
  if constexpr (sizeof(Value) == 4) {
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
    if constexpr (sizeof(Value) == 2) {
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

// The number of bits (0 to 7) of a position within its byte, in every element of a vector.
template <class Element>
inline constexpr auto bits_in_byte = [] {
  struct alignas(16) {
    Element elements[8][16 / sizeof(Element)];
  } table{};
  for (unsigned bit = 0; bit < 8; ++bit)
    for (Element& element : table.elements[bit]) element = bit;
  return table;
}();

// A bit position, which moves towards the beginning of the stream.
struct Position {
  const std::uint8_t* bytes;
  std::size_t bit;

  __m128i data() const {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + bit / 8));
  }
  template <class Element>
  __m128i within_byte() const {
    return _mm_load_si128(
        reinterpret_cast<const __m128i*>(bits_in_byte<Element>.elements[bit % 8]));
  }
  void skip(std::uint32_t n_bits) { bit -= n_bits; }
};

// The bits of eight values as read: in `state` from the state bits on, in `raw` from the raw bits
// on.
struct BitsRead {
  __m256i state, raw;
};

// Eight values of at most 25 bits each. The constructor finds their positions, `read` reads their
// bits. They are two steps, so that the cache misses of a round overlap.
struct Spans16 {
  __m256i below;  // the number of bits of the same four values that lie below those of each value
  Position low, high;

  Spans16(Position& position, __m256i used) {
    below = _mm256_srli_si256(used, 4);
    below = _mm256_add_epi32(below, _mm256_srli_si256(below, 4));
    below = _mm256_add_epi32(below, _mm256_srli_si256(below, 8));
    const __m256i all = _mm256_add_epi32(below, used);
    position.skip(std::uint32_t(_mm256_cvtsi256_si32(all)));
    low = position;
    position.skip(std::uint32_t(_mm_cvtsi128_si32(_mm256_extracti128_si256(all, 1))));
    high = position;
  }
  BitsRead read(__m256i n_low) const {
    const __m256i offset = _mm256_add_epi32(
        below, pair_of(low.within_byte<std::uint32_t>(), high.within_byte<std::uint32_t>()));
    const __m256i lowest_byte = _mm256_setr_epi8(            //
        0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12,  //
        0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
    const __m256i bytes =
        _mm256_add_epi8(_mm256_shuffle_epi8(_mm256_srli_epi32(offset, 3), lowest_byte),
                        _mm256_set1_epi32(0x03020100));
    const __m256i window =
        _mm256_srlv_epi32(_mm256_shuffle_epi8(pair_of(low.data(), high.data()), bytes),
                          _mm256_and_si256(offset, _mm256_set1_epi32(7)));
    return {window, _mm256_srlv_epi32(window, n_low)};
  }
};

// The low halves of eight 64-bit elements.
inline __m256i narrowed(__m256i low, __m256i high) {
  const __m256 both =
      _mm256_shuffle_ps(_mm256_castsi256_ps(low), _mm256_castsi256_ps(high), 0x88);
  return _mm256_permute4x64_epi64(_mm256_castps_si256(both), 0xd8);
}

// The same for values of at most 41 bits: two within 16 bytes, in 64-bit elements.
struct Spans32 {
  __m256i below;
  Position at[4];

  Spans32(Position& position, __m256i used) {
    below = _mm256_srli_epi64(used, 32);
    const __m256i all = _mm256_add_epi32(below, used);
    const __m128i halves[2] = {_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)};
    for (int half = 0; half < 2; ++half) {
      position.skip(std::uint32_t(_mm_cvtsi128_si32(halves[half])));
      at[2 * half] = position;
      position.skip(std::uint32_t(_mm_extract_epi64(halves[half], 1)));
      at[2 * half + 1] = position;
    }
  }
  BitsRead read(__m256i n_low) const {
    const BitsRead a =
        four(at[0], at[1], _mm256_castsi256_si128(below), _mm256_castsi256_si128(n_low));
    const BitsRead b =
        four(at[2], at[3], _mm256_extracti128_si256(below, 1), _mm256_extracti128_si256(n_low, 1));
    return {narrowed(a.state, b.state), narrowed(a.raw, b.raw)};
  }

 private:
  static BitsRead four(const Position& low, const Position& high, __m128i below, __m128i n_low) {
    const __m256i offset = _mm256_add_epi64(
        _mm256_cvtepu32_epi64(below),
        pair_of(low.within_byte<std::uint64_t>(), high.within_byte<std::uint64_t>()));
    const __m256i lowest_byte = _mm256_setr_epi8(        //
        0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 8, 8,  //
        0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 8, 8);
    const __m256i bytes =
        _mm256_add_epi8(_mm256_shuffle_epi8(_mm256_srli_epi64(offset, 3), lowest_byte),
                        _mm256_set1_epi64x(0x0706050403020100));
    const __m256i window =
        _mm256_srlv_epi64(_mm256_shuffle_epi8(pair_of(low.data(), high.data()), bytes),
                          _mm256_and_si256(offset, _mm256_set1_epi64x(7)));
    return {window, _mm256_srlv_epi64(window, _mm256_cvtepu32_epi64(n_low))};
  }
};

// How many bits must be unread for a round.
template <class Value>
inline constexpr std::size_t min_unread_bits = max_round_bits<Value>;

// Decodes rounds of 32 values while enough bits are unread; returns the index of the next value.
template <class Value>
std::size_t decode_rounds(const Entry* entries, BackwardBits& shared_bits,
                          std::uint32_t* shared_states, const std::uint16_t* contexts,
                          std::uint8_t* out, std::size_t i, std::size_t n,
                          PrefetchTargets targets) {
  constexpr int value_bits = 8 * int(sizeof(Value));
  using Spans = std::conditional_t<value_bits <= 16, Spans16, Spans32>;
  BackwardBits bits = shared_bits;
  __m256i states[4];
  for (int v = 0; v < 4; ++v)
    states[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(shared_states) + v);
  for (; i + n_lanes <= n && bits.has_unread(min_unread_bits<Value>); i += n_lanes) {
    __m256i context[4], entry[4], state_bits[4], raw[4], values[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      context[v] = _mm256_cvtepu16_epi32(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(contexts + i) + v));
      const __m256i table = _mm256_and_si256(context[v], _mm256_set1_epi32(context_table_bits));
      entry[v] = entries_at(entries, _mm256_or_si256(table, states[v]));
    }
    prefetch_round<Value>(targets, i);
    Position position{bits.bytes(), bits.position()};
    const auto located = [&](int v) {
      state_bits[v] = _mm256_and_si256(_mm256_srli_epi32(entry[v], 16), _mm256_set1_epi32(31));
      const __m256i width =
          _mm256_and_si256(_mm256_srli_epi32(entry[v], 10), _mm256_set1_epi32(63));
      const __m256i shift = _mm256_and_si256(context[v], _mm256_set1_epi32(63));
      raw[v] = _mm256_min_epi32(_mm256_add_epi32(width, shift), _mm256_set1_epi32(value_bits - 1));
      return Spans(position, _mm256_add_epi32(state_bits[v], raw[v]));
    };
    const Spans spans[4] = {located(0), located(1), located(2), located(3)};
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const BitsRead read = spans[v].read(state_bits[v]);
      const __m256i next = _mm256_and_si256(entry[v], _mm256_set1_epi32(table_stride - 1));
      states[v] = _mm256_add_epi32(next, low_bits(read.state, state_bits[v]));
      values[v] = _mm256_add_epi32(_mm256_sllv_epi32(_mm256_srai_epi32(entry[v], 21), raw[v]),
                                   low_bits(read.raw, raw[v]));
    }
    store_values<Value>(out + i * sizeof(Value), values);
    bits.skip_unchecked(bits.position() - position.bit);
  }
  for (int v = 0; v < 4; ++v)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(shared_states) + v, states[v]);
  shared_bits = bits;
  return i;
}

}  // namespace
DELTAHUB_END
