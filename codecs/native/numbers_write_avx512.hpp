// Encoding, all 32 lanes at once, of numbers of at most 16 bits: the mirror of numbers_avx512.hpp.
// What a number needs fits into 16 bits, so that one vector holds a round; its digits are joined
// four numbers at a time before they go into the stream.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "ahead.hpp"
#include "entries.hpp"
#include "kernels.hpp"
#include "lanes_avx2.hpp"
#include "stream.hpp"
#include "vectors.hpp"
#include "words.hpp"

#define DELTAHUB_HAS_SHORT_WRITE
#define DELTAHUB_HAS_SHORT_PLACES

DELTAHUB_BEGIN
namespace {

// Where the columns of sixteen rows lie in two vectors: one column, and another behind it.
inline constexpr auto row_columns = [] {
  std::array<std::array<std::uint16_t, 32>, 2> at{};
  for (std::uint16_t pair = 0; pair < 2; ++pair)
    for (std::uint16_t i = 0; i < 32; ++i)
      at[pair][i] = std::uint16_t(4 * (i % 16) + 2 * pair + i / 16);
  return at;
}();

// Where the low halves of 32 elements of 32 bits lie.
inline constexpr auto places_of_low_halves = [] {
  std::array<std::uint16_t, 32> at{};
  for (std::uint16_t i = 0; i < 32; ++i) at[i] = std::uint16_t(2 * i);
  return at;
}();

// 32 rows, column by column.
struct RowColumns {
  __m512i low_add, high_add, first, width;  // the width below whether the row is missing

  RowColumns(const Row* rows, const std::uint16_t* places) {
    static_assert(sizeof(Row) == 8);
    __m512i eight[4];
    for (int v = 0; v < 4; ++v) {
      const auto two = [&](int k) {
        const std::uint16_t* const at = places + 8 * v + k;
        const __m128i one = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(rows + at[0]));
        return _mm_insert_epi64(
            one, load<std::int64_t>(reinterpret_cast<const std::uint8_t*>(rows + at[1])), 1);
      };
      eight[v] = _mm512_inserti64x4(_mm512_castsi256_si512(pair_of(two(0), two(2))),
                                    pair_of(two(4), two(6)), 1);
    }
    const auto columns = [&](int pair, __m512i& one, __m512i& other) {
      const __m512i at = _mm512_loadu_si512(row_columns[std::size_t(pair)].data());
      const __m512i low = _mm512_permutex2var_epi16(eight[0], at, eight[1]);
      const __m512i high = _mm512_permutex2var_epi16(eight[2], at, eight[3]);
      one = _mm512_shuffle_i64x2(low, high, 0x44);
      other = _mm512_shuffle_i64x2(low, high, 0xee);
    };
    columns(0, low_add, high_add);
    columns(1, first, width);
  }
};

// next_states[index] of 32 lanes.
inline __m512i states_at(const std::uint16_t* next_states, __m512i index) {
  alignas(64) std::uint16_t at[n_lanes];
  _mm512_store_si512(at, index);
  keep_in_memory(at);
  const auto eight = [&](int k) {
    __m128i found = _mm_cvtsi32_si128(  // its high half is overwritten
        load<int>(reinterpret_cast<const std::uint8_t*>(next_states + at[k])));
    found = _mm_insert_epi16(found, next_states[at[k + 1]], 1);
    found = _mm_insert_epi16(found, next_states[at[k + 2]], 2);
    found = _mm_insert_epi16(found, next_states[at[k + 3]], 3);
    found = _mm_insert_epi16(found, next_states[at[k + 4]], 4);
    found = _mm_insert_epi16(found, next_states[at[k + 5]], 5);
    found = _mm_insert_epi16(found, next_states[at[k + 6]], 6);
    return _mm_insert_epi16(found, next_states[at[k + 7]], 7);
  };
  return _mm512_inserti64x4(_mm512_castsi256_si512(pair_of(eight(0), eight(8))),
                            pair_of(eight(16), eight(24)), 1);
}

inline __m512i low_digits_of_words(__m512i value, __m512i n_digits) {
  return _mm512_andnot_si512(_mm512_sllv_epi16(_mm512_set1_epi16(-1), n_digits), value);
}

// Whether there are more of them in each element, of at most 128.
template <int LIMIT>
inline unsigned has_more_than(__m512i n_digits) {
  return _mm512_test_epi64_mask(_mm512_add_epi64(n_digits, _mm512_set1_epi64(127 - LIMIT)),
                                _mm512_set1_epi64(128));
}

template <class Number>
inline __m512i load_words(const std::uint8_t* numbers) {
  if constexpr (sizeof(Number) == 2) return _mm512_loadu_si512(numbers);
  const auto half = [numbers](int k) {
    return _mm256_cvtepu8_epi16(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers + 16 * k)));
  };
  return _mm512_inserti64x4(_mm512_castsi256_si512(half(0)), half(1), 1);
}

// The cells of magnitudes 0..63, and of those that are as many multiples of 2^5, or of 2^10: from the
// second multiple on, cells begin nowhere else.
inline constexpr auto cells_at_steps = [] {
  std::array<std::array<std::uint8_t, 64>, 3> cells{};
  for (unsigned i = 0; i < 64; ++i)
    for (unsigned step = 0; step < 3; ++step)
      cells[step][i] = std::uint8_t(cell_of(std::uint32_t(i) << (5 * step)));
  return cells;
}();

// As many places as are whole vectors; the rest is the caller's.
inline std::size_t fast_short_places(const std::uint8_t* numbers, const std::uint16_t* contexts,
                                     std::size_t n, std::uint16_t* out) {
  const auto cells_of = [](unsigned step) {
    return _mm512_loadu_si512(cells_at_steps[step].data());
  };
  const __m512i fine = cells_of(0), middle = cells_of(1), coarse = cells_of(2);
  std::size_t j = 0;
  for (; j + 32 <= n; j += 32) {
    const __m512i number = _mm512_loadu_si512(numbers + 2 * j);
    const __m512i context = _mm512_loadu_si512(contexts + j);
    const __m512i size = _mm512_srlv_epi16(
        _mm512_xor_si512(number, _mm512_srai_epi16(number, 15)),
        _mm512_and_si512(context, _mm512_set1_epi16(63)));
    // The low byte of each word is looked up; of the high one nothing is kept.
    const auto at = [&](__m512i table, __m512i index) {
      return _mm512_permutexvar_epi8(index, table);
    };
    __m512i cell = at(fine, size);
    cell = _mm512_mask_mov_epi16(cell, _mm512_cmpgt_epu16_mask(size, _mm512_set1_epi16(63)),
                                 at(middle, _mm512_srli_epi16(size, 5)));
    cell = _mm512_mask_mov_epi16(cell, _mm512_cmpgt_epu16_mask(size, _mm512_set1_epi16(2047)),
                                 at(coarse, _mm512_srli_epi16(size, 10)));
    const __m512i place = _mm512_or_si512(
        _mm512_slli_epi16(_mm512_and_si512(cell, _mm512_set1_epi16(255)), 1),
        _mm512_srli_epi16(number, 15));
    const __m512i first = _mm512_mullo_epi16(_mm512_srli_epi16(context, max_table_log),
                                             _mm512_set1_epi16(short(n_places)));
    _mm512_storeu_si512(out + j, _mm512_add_epi16(first, place));
  }
  return j;
}

// Whole rounds of 32 numbers, from the last of n to the first.
template <class Number>
void fast_short_write(ForwardBits& bits, const Row* rows, const std::uint16_t* next_states,
                  std::uint32_t* shared_states, const std::uint16_t* contexts,
                  const std::uint8_t* numbers, const std::uint16_t* places, std::size_t n,
                  Ahead ahead, std::uint32_t& missing) {
  constexpr int number_bits = 8 * int(sizeof(Number));
  __m512i state = _mm512_permutex2var_epi16(_mm512_loadu_si512(shared_states),
                                            _mm512_loadu_si512(places_of_low_halves.data()),
                                            _mm512_loadu_si512(shared_states + 16));
  __m512i seen = _mm512_setzero_si512();
  const __m512i low_half = _mm512_set1_epi32(0xffff);
  if (n == 0) return;
  // The rows of a round are loaded beside the look-ups of the round before, which wait for states.
  RowColumns next(rows, places + n - n_lanes);
  for (std::size_t i = n; i > 0;) {
    i -= n_lanes;
    ask_for_round<Number>(ahead, i);
    const RowColumns row = next;
    const __m512i context = _mm512_loadu_si512(contexts + i);
    const __m512i shift = _mm512_and_si512(context, _mm512_set1_epi16(63));
    const __m512i width = _mm512_and_si512(row.width, _mm512_set1_epi16(255));
    const __m512i raw =
        _mm512_min_epu16(_mm512_add_epi16(width, shift), _mm512_set1_epi16(number_bits - 1));
    // As in the row, but with the digits from bit 12 on.
    const __m512i add = _mm512_add_epi16(
        row.low_add,
        _mm512_slli_epi16(_mm512_add_epi16(row.high_add, _mm512_set1_epi16(1)), 12));
    const __m512i digits = _mm512_srli_epi16(_mm512_add_epi16(state, add), 12);
    const __m512i low = low_digits_of_words(state, digits);
    const __m512i rest = low_digits_of_words(load_words<Number>(numbers + i * sizeof(Number)), raw);
    state = states_at(next_states, _mm512_add_epi16(_mm512_srlv_epi16(state, digits), row.first));
    seen = _mm512_or_si512(seen, row.width);
    next = RowColumns(rows, places + (i > 0 ? i - n_lanes : 0));

    // The number of the higher lane comes first.
    const __m512i lengths = _mm512_add_epi16(digits, raw);
    const __m512i even_value =
        _mm512_or_si512(_mm512_and_si512(low, low_half),
                        _mm512_sllv_epi32(_mm512_and_si512(rest, low_half),
                                          _mm512_and_si512(digits, low_half)));
    const __m512i odd_value = _mm512_or_si512(
        _mm512_srli_epi32(low, 16),
        _mm512_sllv_epi32(_mm512_srli_epi32(rest, 16), _mm512_srli_epi32(digits, 16)));
    const __m512i odd_length = _mm512_srli_epi32(lengths, 16);
    const __m512i pair_length =
        _mm512_add_epi32(_mm512_and_si512(lengths, low_half), odd_length);
    const __m512i upper_length = _mm512_srli_epi64(pair_length, 32);
    const __m512i four_length =
        _mm512_add_epi64(_mm512_and_si512(pair_length, _mm512_set1_epi64(0xffffffff)),
                         upper_length);
    // Pairs of more than 32 digits, or four numbers of more than 56.
    const bool is_long =
        (_mm512_test_epi32_mask(_mm512_add_epi32(pair_length, _mm512_set1_epi32(31)),
                                _mm512_set1_epi32(64)) |
         has_more_than<56>(four_length)) != 0;
    if (is_long) [[unlikely]] {
      alignas(64) std::uint32_t values[2][n_lanes / 2];
      alignas(64) std::uint16_t n_bits[n_lanes];
      _mm512_store_si512(values[0], even_value);
      _mm512_store_si512(values[1], odd_value);
      _mm512_store_si512(n_bits, lengths);
      for (std::size_t k = n_lanes; k-- > 0;) bits.put(values[k % 2][k / 2], n_bits[k]);
      continue;
    }
    const __m512i pair = _mm512_or_si512(odd_value, _mm512_sllv_epi32(even_value, odd_length));
    const __m512i four = _mm512_or_si512(
        _mm512_srli_epi64(pair, 32),
        _mm512_sllv_epi64(_mm512_and_si512(pair, _mm512_set1_epi64(0xffffffff)), upper_length));
    // Eight numbers where they fit.
    const __m512i other_length = _mm512_unpackhi_epi64(four_length, four_length);
    const __m512i eight_length = _mm512_add_epi64(four_length, other_length);
    alignas(64) std::uint64_t values[n_lanes / 4], n_bits[n_lanes / 4];
    if (has_more_than<56>(eight_length) & 0x55) {
      _mm512_store_si512(values, four);
      _mm512_store_si512(n_bits, four_length);
      for (std::size_t k = n_lanes / 4; k-- > 0;) bits.put(values[k], unsigned(n_bits[k]));
    } else {
      _mm512_store_si512(values,
                         _mm512_or_si512(_mm512_unpackhi_epi64(four, four),
                                         _mm512_sllv_epi64(four, other_length)));
      _mm512_store_si512(n_bits, eight_length);
      for (std::size_t k = n_lanes / 4; k > 0; k -= 2)
        bits.put(values[k - 2], unsigned(n_bits[k - 2]));
    }
  }
  alignas(64) std::uint16_t last[n_lanes];
  _mm512_store_si512(last, state);
  std::copy_n(last, n_lanes, shared_states);
  missing |= std::uint32_t(
      _mm512_test_epi16_mask(seen, _mm512_set1_epi16(short(0xff00))) != 0);
}

}  // namespace
DELTAHUB_END
