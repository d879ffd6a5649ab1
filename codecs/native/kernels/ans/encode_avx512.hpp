// Encoding, all 32 lanes at once, of numbers of at most 16 bits: the mirror of kernels/ans/decode_avx512.hpp.
// What a number needs fits into 16 bits, so that one vector holds a round; its digits are joined
// four numbers at a time before they go into the stream.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/vectors.hpp"
#include "base/words.hpp"
#include "kernels/ans/bit_stream.hpp"
#include "kernels/ans/decode_avx512.hpp"
#include "kernels/ans/prefetch.hpp"
#include "kernels/ans/table_entries.hpp"
#include "kernels/kernels.hpp"
#include "kernels/simd/lanes_avx512.hpp"

#define DELTAHUB_HAS_SHORT_WRITE
#define DELTAHUB_HAS_SHORT_PLACES

DELTAHUB_BEGIN
namespace {

// Where the low halves of 32 elements of 32 bits lie.
inline constexpr auto places_of_low_halves = [] {
  std::array<std::uint16_t, 32> at{};
  for (std::uint16_t i = 0; i < 32; ++i) at[i] = std::uint16_t(2 * i);
  return at;
}();

// Of eight lengths, each the lowest byte of eight: in each eight, those of the later ones.
inline constexpr auto lengths_behind = [] {
  std::array<std::uint8_t, 64> at{};
  for (std::uint8_t i = 0; i < 64; ++i) at[i] = i % 8 > i / 8 ? std::uint8_t(8 * (i % 8)) : 1;
  return at;
}();

// What rounds need again and again, as a member of what makes them: see RoundConstants.
template <class Number>
struct WriteConstants {
  __m512i low_half = _mm512_set1_epi32(0xffff);
  __m512i shift = _mm512_set1_epi16(63);
  __m512i table = _mm512_set1_epi16(short(context_table_bits));
  __m512i width = _mm512_set1_epi16(short_row_width);
  __m512i most_raw = _mm512_set1_epi16(8 * int(sizeof(Number)) - 1);
  __m512i one = _mm512_set1_epi16(1);
  __m512i all = _mm512_set1_epi16(-1);
  __m512i seven = _mm512_set1_epi64(7);
  __m512i whole_bytes = _mm512_set1_epi64(56);
  __m512i beyond_32 = _mm512_set1_epi32(31), beyond_56 = _mm512_set1_epi64(7);
  __m512i too_long = _mm512_set1_epi32(64);
  __m512i behind = _mm512_loadu_si512(lengths_behind.data());

  // The low halves of `low` below the high ones of `high`.
  __m512i low_halves(__m512i high, __m512i low) const {
    return _mm512_ternarylogic_epi32(high, low, low_half, second_or_first_by_third);
  }
  __m512i low_digits(__m512i value, __m512i n_digits) const {
    return _mm512_andnot_si512(_mm512_sllv_epi16(all, n_digits), value);
  }
};

template <class Number>
inline __m512i load_words(const std::uint8_t* numbers) {
  if constexpr (sizeof(Number) == 2) return _mm512_loadu_si512(numbers);
  const auto half = [numbers](int k) {
    return _mm256_cvtepu8_epi16(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers + 16 * k)));
  };
  return _mm512_inserti64x4(_mm512_castsi256_si512(half(0)), half(1), 1);
}

// Twice the cells of magnitudes 0..63, and of those that are as many multiples of 2^5, or of 2^10:
// from the second multiple on, cells begin nowhere else.
inline constexpr auto cells_at_steps = [] {
  std::array<std::array<std::uint8_t, 64>, 3> cells{};
  for (unsigned i = 0; i < 64; ++i)
    for (unsigned step = 0; step < 3; ++step)
      cells[step][i] = std::uint8_t(2 * cell_of(std::uint32_t(i) << (5 * step)));
  return cells;
}();

// As many places as are whole vectors; the rest is the caller's. Shifts and look-ups share two of four
// ports: what is told without them is.
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
    const __m512i negative = _mm512_srai_epi16(number, 15);
    const __m512i size = _mm512_srlv_epi16(_mm512_xor_si512(number, negative),
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
    const __m512i place =
        _mm512_sub_epi16(_mm512_and_si512(cell, _mm512_set1_epi16(255)), negative);
    // The table's number, which lies above the other digits, times n_places.
    const __m512i first = _mm512_mulhi_epu16(
        _mm512_and_si512(context, _mm512_set1_epi16(short(context_table_bits))),
        _mm512_set1_epi16(short(n_places << (16 - max_table_log))));
    _mm512_storeu_si512(out + j, _mm512_add_epi16(first, place));
  }
  return j;
}

// The first one's bits that the second one has, and the third one's.
constexpr int first_and_second_or_third = 0xea, first_or_second_and_third = 0xf8;

// Eight pieces of a stream, of at most 63 bits each, which are put behind each other a round later:
// what was just stored as a vector would be waited for.
struct LatePieces {
  alignas(64) std::uint64_t values[n_lanes / 4] = {};  // shifted to where they begin in a byte
  // That byte, times 64; and how many bits lie in the bytes that end within the piece.
  alignas(64) std::uint64_t places[n_lanes / 4] = {};

  // From the last piece to the first. out: where the round begins; no member, since members stay in
  // memory. pending: the bits before the piece; then those of its last byte.
  void put(std::size_t k, std::uint8_t* out, std::uint64_t& pending) const {
    const std::uint64_t place = places[k];
    pending |= values[k];
    store(out + place / 64, pending);
    pending >>= place % 64;
  }
};

// Rows of 32 places. Between them the pieces are put, each of which waits for the one before: so there
// is something to do meanwhile.
[[gnu::always_inline]] inline Lanes rows_between(const std::uint32_t* rows,
                                                 const std::uint16_t* places, LatePieces& late,
                                                 std::uint8_t* late_out, std::uint64_t& pending) {
  keep_here(late.values), keep_here(late.places);
  return rows_of_lanes(rows, places, [&](unsigned k) { late.put(k, late_out, pending); });
}

// One stream in mid-writing, a round of 32 numbers after the other, from the last of n to the first.
template <class Number>
class ShortWriter {
 public:
  ShortWriter(const ForwardBits& bits, const std::uint32_t* rows, const std::uint16_t* next_states,
              const std::uint32_t* states, const std::uint16_t* contexts,
              const std::uint8_t* numbers, const std::uint16_t* places, std::size_t n, Ahead ahead,
              LatePieces& late)
      : rows_(rows),
        next_states_(next_states),
        contexts_(contexts),
        numbers_(numbers),
        places_(places),
        ahead_(ahead),
        states_(_mm512_permutex2var_epi16(_mm512_loadu_si512(states),
                                          _mm512_loadu_si512(places_of_low_halves.data()),
                                          _mm512_loadu_si512(states + 16))),
        out_(bits.at()),
        pending_(bits.pending()),
        n_pending_(bits.n_pending()),
        late_out_(out_),
        // The rows of a round are loaded beside the look-ups of the round before, which wait for
        // states.
        next_(rows_between(rows, places + n - n_lanes, late, late_out_, pending_)) {}

  // Numbers i to i + 31; those of rounds behind it were written.
  [[gnu::always_inline]] void write_round(std::size_t i, LatePieces& late) {
    ask_for_round<Number>(ahead_, i);
    const __m512i add = constants_.low_halves(_mm512_slli_epi32(next_.odd, 16), next_.even);
    const __m512i row = constants_.low_halves(next_.odd, _mm512_srli_epi32(next_.even, 16));
    const __m512i context = _mm512_loadu_si512(contexts_ + i);
    const __m512i digits = _mm512_srli_epi16(_mm512_add_epi16(states_, add), 12);
    const __m512i first = _mm512_add_epi16(_mm512_srai_epi16(row, short_row_first),
                                           _mm512_and_si512(context, constants_.table));
    StateIndices indices(_mm512_add_epi16(_mm512_srlv_epi16(states_, digits), first));
    seen_ = _mm512_or_si512(seen_, row);
    next_ = rows_between(rows_, places_ + (i > 0 ? i - n_lanes : 0), late, late_out_, pending_);

    const __m512i low = constants_.low_digits(states_, digits);
    const __m512i raw =
        _mm512_min_epu16(_mm512_add_epi16(_mm512_and_si512(row, constants_.width),
                                          _mm512_and_si512(context, constants_.shift)),
                         constants_.most_raw);
    const __m512i rest =
        constants_.low_digits(load_words<Number>(numbers_ + i * sizeof(Number)), raw);
    // Two numbers, then four: that of the higher lane comes first.
    const __m512i lengths = _mm512_add_epi16(digits, raw);
    const __m512i odd_length = _mm512_srli_epi32(lengths, 16);
    const __m512i pair_length = _mm512_madd_epi16(lengths, constants_.one);
    const __m512i four_length = _mm512_sad_epu8(lengths, _mm512_setzero_si512());
    const __m512i even_value = _mm512_ternarylogic_epi32(
        low, constants_.low_half,
        _mm512_sllv_epi32(_mm512_and_si512(rest, constants_.low_half),
                          _mm512_and_si512(digits, constants_.low_half)),
        first_and_second_or_third);
    const __m512i odd_value = _mm512_or_si512(
        _mm512_srli_epi32(low, 16),
        _mm512_sllv_epi32(_mm512_srli_epi32(rest, 16), _mm512_srli_epi32(digits, 16)));
    const __m512i pair = _mm512_or_si512(odd_value, _mm512_sllv_epi32(even_value, odd_length));
    const __m512i four = _mm512_or_si512(
        _mm512_srli_epi64(pair, 32),
        _mm512_sllv_epi64(_mm512_maskz_mov_epi32(0x5555, pair),
                          _mm512_srli_epi64(pair_length, 32)));
    // Each four begins within a byte in which the one before it ends.
    const __m512i behind = _mm512_sad_epu8(
        _mm512_maskz_permutexvar_epi8(0x0080c0e0f0f8fcfe, constants_.behind, four_length),
        _mm512_setzero_si512());
    const __m512i begin = _mm512_add_epi64(behind, _mm512_set1_epi64(std::int64_t(n_pending_)));
    const __m512i within = _mm512_and_si512(begin, constants_.seven);
    const __m512i end = _mm512_add_epi64(within, four_length);
    _mm512_store_si512(late.values, _mm512_sllv_epi64(four, within));
    _mm512_store_si512(late.places, _mm512_ternarylogic_epi64(
                                         _mm512_slli_epi64(_mm512_srli_epi64(begin, 3), 6), end,
                                         constants_.whole_bytes, first_or_second_and_third));
    keep_here(late.values), keep_here(late.places);
    late_out_ = out_;
    // Pairs of more than 32 digits, or four numbers of more than 56.
    const __m512i is_beyond = _mm512_or_si512(
        _mm512_add_epi32(pair_length, constants_.beyond_32),
        _mm512_add_epi64(four_length, constants_.beyond_56));
    if (_mm512_test_epi32_mask(is_beyond, constants_.too_long) != 0) [[unlikely]] {
      alignas(64) std::uint32_t values[2][n_lanes / 2];
      alignas(64) std::uint16_t n_bits[n_lanes];
      _mm512_store_si512(values[0], even_value);
      _mm512_store_si512(values[1], odd_value);
      _mm512_store_si512(n_bits, lengths);
      ForwardBits slow(out_, pending_, unsigned(n_pending_));
      for (std::size_t k = n_lanes; k-- > 0;) slow.put(values[k % 2][k / 2], n_bits[k]);
      out_ = slow.at(), pending_ = slow.pending(), n_pending_ = slow.n_pending();
      late = {}, late_out_ = out_;
    } else {
      const auto n_bits = std::uint64_t(
          _mm_cvtsi128_si64(_mm512_castsi512_si128(_mm512_add_epi64(begin, four_length))));
      out_ += n_bits / 8;
      n_pending_ = n_bits % 8;
    }
    const Lanes found = indices.states(next_states_);
    states_ = constants_.low_halves(found.odd, found.even);
  }

  void leave(ForwardBits& bits, std::uint32_t* states, std::uint32_t& missing, LatePieces& late) {
    for (std::size_t k = n_lanes / 4; k-- > 0;) late.put(k, late_out_, pending_);
    bits = ForwardBits(out_, pending_, unsigned(n_pending_));
    alignas(64) std::uint16_t last[n_lanes];
    _mm512_store_si512(last, states_);
    std::copy_n(last, n_lanes, states);
    missing |= std::uint32_t(
        _mm512_test_epi16_mask(seen_, _mm512_set1_epi16(short_row_is_missing)) != 0);
  }

 private:
  WriteConstants<Number> constants_;
  const std::uint32_t* rows_;
  const std::uint16_t* next_states_;
  const std::uint16_t* contexts_;
  const std::uint8_t* numbers_;
  const std::uint16_t* places_;
  Ahead ahead_;
  __m512i states_, seen_ = _mm512_setzero_si512();
  std::uint8_t* out_;
  std::uint64_t pending_, n_pending_;
  std::uint8_t* late_out_;
  Lanes next_;
};

// Whole rounds of 32 numbers, from the last of n to the first.
template <class Number>
void fast_short_write(ForwardBits& bits, const std::uint32_t* rows,
                      const std::uint16_t* next_states, std::uint32_t* states,
                      const std::uint16_t* contexts, const std::uint8_t* numbers,
                      const std::uint16_t* places, std::size_t n, Ahead ahead,
                      std::uint32_t& missing) {
  if (n == 0) return;
  LatePieces late;
  ShortWriter<Number> writer(bits, rows, next_states, states, contexts, numbers, places, n, ahead,
                             late);
  for (std::size_t i = n; i > 0;) writer.write_round(i -= n_lanes, late);
  writer.leave(bits, states, missing, late);
}

}  // namespace
DELTAHUB_END
