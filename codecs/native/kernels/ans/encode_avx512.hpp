// Encodes all 32 lanes at a time, for values of at most 16 bits: the reverse of
// kernels/ans/decode_avx512.hpp. One vector holds a round in 16-bit fields; the bits of four
// values are joined before they go into the stream.
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

#define DELTAHUB_HAS_ENCODE_PACKED
#define DELTAHUB_HAS_ROW_INDICES

DELTAHUB_BEGIN
namespace {

// The indices of the low halves of 32-bit elements.
inline constexpr auto low_half_indices = [] {
  std::array<std::uint16_t, 32> at{};
  for (std::uint16_t i = 0; i < 32; ++i) at[i] = std::uint16_t(2 * i);
  return at;
}();

// A byte permutation of eight lengths, each in the lowest byte of a 64-bit element: each element
// gets the lengths of the later elements, which precede it in the stream.
inline constexpr auto lengths_behind = [] {
  std::array<std::uint8_t, 64> at{};
  for (std::uint8_t i = 0; i < 64; ++i) at[i] = i % 8 > i / 8 ? std::uint8_t(8 * (i % 8)) : 1;
  return at;
}();

// Constants of a round, as a member: see DecodeConstants.
template <class Value>
struct EncodeConstants {
  __m512i low_half = _mm512_set1_epi32(0xffff);
  __m512i shift = _mm512_set1_epi16(63);
  __m512i table = _mm512_set1_epi16(short(context_table_bits));
  __m512i width = _mm512_set1_epi16(packed_row_width);
  __m512i max_raw = _mm512_set1_epi16(8 * int(sizeof(Value)) - 1);
  __m512i one = _mm512_set1_epi16(1);
  __m512i all = _mm512_set1_epi16(-1);
  __m512i seven = _mm512_set1_epi64(7);
  __m512i whole_bytes = _mm512_set1_epi64(56);
  __m512i beyond_32 = _mm512_set1_epi32(31), beyond_56 = _mm512_set1_epi64(7);
  __m512i too_long = _mm512_set1_epi32(64);
  __m512i behind = _mm512_loadu_si512(lengths_behind.data());

  // Low halves from `low`, high halves from `high`.
  __m512i low_halves(__m512i high, __m512i low) const {
    return _mm512_ternarylogic_epi32(high, low, low_half, second_or_first_by_third);
  }
  __m512i low_bits(__m512i value, __m512i n_bits) const {
    return _mm512_andnot_si512(_mm512_sllv_epi16(all, n_bits), value);
  }
};

template <class Value>
inline __m512i load_as_16_bits(const std::uint8_t* values) {
  if constexpr (sizeof(Value) == 2) return _mm512_loadu_si512(values);
  const auto half = [values](int k) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values + 16 * k)));
  };
  return _mm512_inserti64x4(_mm512_castsi256_si512(half(0)), half(1), 1);
}

// Twice the cell of magnitudes 0..63, of their multiples by 2^5, and of their multiples by 2^10.
// From the second multiple on, cells begin only at multiples.
inline constexpr auto cells_at_steps = [] {
  std::array<std::array<std::uint8_t, 64>, 3> cells{};
  for (unsigned i = 0; i < 64; ++i)
    for (unsigned step = 0; step < 3; ++step)
      cells[step][i] = std::uint8_t(2 * cell_of(std::uint32_t(i) << (5 * step)));
  return cells;
}();

// Handles whole vectors and returns how many values those are; the caller handles the others.
// Shifts and permutations run on two of four ports, so other instructions are used where possible.
inline std::size_t fast_row_indices(const std::uint8_t* values, const std::uint16_t* contexts,
                                    std::size_t n, std::uint16_t* out) {
  const auto cells_of = [](unsigned step) {
    return _mm512_loadu_si512(cells_at_steps[step].data());
  };
  const __m512i fine = cells_of(0), middle = cells_of(1), coarse = cells_of(2);
  std::size_t j = 0;
  for (; j + 32 <= n; j += 32) {
    const __m512i value = _mm512_loadu_si512(values + 2 * j);
    const __m512i context = _mm512_loadu_si512(contexts + j);
    const __m512i negative = _mm512_srai_epi16(value, 15);
    const __m512i size = _mm512_srlv_epi16(_mm512_xor_si512(value, negative),
                                           _mm512_and_si512(context, _mm512_set1_epi16(63)));
    // Looks up the low byte of each 16-bit element; the high byte of the result is dropped.
    const auto at = [&](__m512i table, __m512i index) {
      return _mm512_permutexvar_epi8(index, table);
    };
    __m512i cell = at(fine, size);
    cell = _mm512_mask_mov_epi16(cell, _mm512_cmpgt_epu16_mask(size, _mm512_set1_epi16(63)),
                                 at(middle, _mm512_srli_epi16(size, 5)));
    cell = _mm512_mask_mov_epi16(cell, _mm512_cmpgt_epu16_mask(size, _mm512_set1_epi16(2047)),
                                 at(coarse, _mm512_srli_epi16(size, 10)));
    const __m512i row_in_table =
        _mm512_sub_epi16(_mm512_and_si512(cell, _mm512_set1_epi16(255)), negative);
    // The index of the table, which is in the high bits of the context, times rows_per_table.
    const __m512i first =
        _mm512_mulhi_epu16(_mm512_and_si512(context, _mm512_set1_epi16(short(context_table_bits))),
                           _mm512_set1_epi16(short(rows_per_table << (16 - max_table_log))));
    _mm512_storeu_si512(out + j, _mm512_add_epi16(first, row_in_table));
  }
  return j;
}

// Truth tables for ternary logic: (a & b) | c, and a | (b & c).
constexpr int first_and_second_or_third = 0xea, first_or_second_and_third = 0xf8;

// Eight pieces of a stream, of at most 63 bits each. They are written one round later, because
// loads would have to wait for vector stores that were just made.
struct PendingPieces {
  alignas(64) std::uint64_t values[n_lanes / 4] = {};  // shifted to their first bit within its byte
  // The index of the byte in which the piece begins, times 64, plus the number of bits in the
  // bytes that end within the piece.
  alignas(64) std::uint64_t positions[n_lanes / 4] = {};

  // Writes piece k; the last piece must be written first. out: where the round begins; a
  // parameter, because members stay in memory. pending: in, the unstored bits before the piece;
  // out, those of its last byte.
  void put(std::size_t k, std::uint8_t* out, std::uint64_t& pending) const {
    const std::uint64_t position = positions[k];
    pending |= values[k];
    store(out + position / 64, pending);
    pending >>= position % 64;
  }
};

// Loads the rows of 32 row indices. Between the loads the pieces are written: each piece depends
// on the one before, and the loads fill the waiting time.
[[gnu::always_inline]] inline Lanes rows_between(const std::uint32_t* rows,
                                                 const std::uint16_t* row_indices,
                                                 PendingPieces& pieces, std::uint8_t* pieces_out,
                                                 std::uint64_t& pending) {
  keep_here(pieces.values), keep_here(pieces.positions);
  return rows_of_lanes(rows, row_indices, [&](unsigned k) { pieces.put(k, pieces_out, pending); });
}

// Encodes one stream in rounds of 32 values, from the last of n to the first.
template <class Value>
class RoundWriter {
 public:
  RoundWriter(const ForwardBits& bits, const std::uint32_t* rows, const std::uint16_t* next_states,
              const std::uint32_t* states, const std::uint16_t* contexts,
              const std::uint8_t* values, const std::uint16_t* row_indices, std::size_t n,
              PrefetchTargets targets, PendingPieces& pieces)
      : rows_(rows),
        next_states_(next_states),
        contexts_(contexts),
        values_(values),
        row_indices_(row_indices),
        targets_(targets),
        states_(_mm512_permutex2var_epi16(_mm512_loadu_si512(states),
                                          _mm512_loadu_si512(low_half_indices.data()),
                                          _mm512_loadu_si512(states + 16))),
        out_(bits.at()),
        pending_(bits.pending()),
        n_pending_(bits.n_pending()),
        pieces_out_(out_),
        // The rows of a round are loaded during the round before, whose state look-ups wait for
        // its states.
        next_(rows_between(rows, row_indices + n - n_lanes, pieces, pieces_out_, pending_)) {}

  // Encodes values i to i + 31; later values must have been encoded.
  [[gnu::always_inline]] void write_round(std::size_t i, PendingPieces& pieces) {
    prefetch_round<Value>(targets_, i);
    const __m512i add = constants_.low_halves(_mm512_slli_epi32(next_.odd, 16), next_.even);
    const __m512i row = constants_.low_halves(next_.odd, _mm512_srli_epi32(next_.even, 16));
    const __m512i context = _mm512_loadu_si512(contexts_ + i);
    const __m512i state_bits = _mm512_srli_epi16(_mm512_add_epi16(states_, add), 12);
    const __m512i first = _mm512_add_epi16(_mm512_srai_epi16(row, packed_row_offset_bit),
                                           _mm512_and_si512(context, constants_.table));
    StateIndices indices(_mm512_add_epi16(_mm512_srlv_epi16(states_, state_bits), first));
    seen_ = _mm512_or_si512(seen_, row);
    next_ = rows_between(rows_, row_indices_ + (i > 0 ? i - n_lanes : 0), pieces, pieces_out_,
                         pending_);

    const __m512i low = constants_.low_bits(states_, state_bits);
    const __m512i raw =
        _mm512_min_epu16(_mm512_add_epi16(_mm512_and_si512(row, constants_.width),
                                          _mm512_and_si512(context, constants_.shift)),
                         constants_.max_raw);
    const __m512i raw_part =
        constants_.low_bits(load_as_16_bits<Value>(values_ + i * sizeof(Value)), raw);
    // Joins two values, then four: the value of the higher lane is first.
    const __m512i lengths = _mm512_add_epi16(state_bits, raw);
    const __m512i odd_length = _mm512_srli_epi32(lengths, 16);
    const __m512i pair_length = _mm512_madd_epi16(lengths, constants_.one);
    const __m512i four_length = _mm512_sad_epu8(lengths, _mm512_setzero_si512());
    const __m512i even_value = _mm512_ternarylogic_epi32(
        low, constants_.low_half,
        _mm512_sllv_epi32(_mm512_and_si512(raw_part, constants_.low_half),
                          _mm512_and_si512(state_bits, constants_.low_half)),
        first_and_second_or_third);
    const __m512i odd_value = _mm512_or_si512(
        _mm512_srli_epi32(low, 16),
        _mm512_sllv_epi32(_mm512_srli_epi32(raw_part, 16), _mm512_srli_epi32(state_bits, 16)));
    const __m512i pair = _mm512_or_si512(odd_value, _mm512_sllv_epi32(even_value, odd_length));
    const __m512i four = _mm512_or_si512(
        _mm512_srli_epi64(pair, 32),
        _mm512_sllv_epi64(_mm512_maskz_mov_epi32(0x5555, pair),
                          _mm512_srli_epi64(pair_length, 32)));
    // Each group of four values begins within the byte in which the one before it ends.
    const __m512i behind = _mm512_sad_epu8(
        _mm512_maskz_permutexvar_epi8(0x0080c0e0f0f8fcfe, constants_.behind, four_length),
        _mm512_setzero_si512());
    const __m512i begin = _mm512_add_epi64(behind, _mm512_set1_epi64(std::int64_t(n_pending_)));
    const __m512i within = _mm512_and_si512(begin, constants_.seven);
    const __m512i end = _mm512_add_epi64(within, four_length);
    _mm512_store_si512(pieces.values, _mm512_sllv_epi64(four, within));
    _mm512_store_si512(pieces.positions, _mm512_ternarylogic_epi64(
                                             _mm512_slli_epi64(_mm512_srli_epi64(begin, 3), 6), end,
                                             constants_.whole_bytes, first_or_second_and_third));
    keep_here(pieces.values), keep_here(pieces.positions);
    pieces_out_ = out_;
    // Two values of more than 32 bits, or four values of more than 56 bits, take the slow path.
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
      pieces = {}, pieces_out_ = out_;
    } else {
      const auto n_bits = std::uint64_t(
          _mm_cvtsi128_si64(_mm512_castsi512_si128(_mm512_add_epi64(begin, four_length))));
      out_ += n_bits / 8;
      n_pending_ = n_bits % 8;
    }
    const Lanes found = indices.states(next_states_);
    states_ = constants_.low_halves(found.odd, found.even);
  }

  void store_state(ForwardBits& bits, std::uint32_t* states, std::uint32_t& missing,
                   PendingPieces& pieces) {
    for (std::size_t k = n_lanes / 4; k-- > 0;) pieces.put(k, pieces_out_, pending_);
    bits = ForwardBits(out_, pending_, unsigned(n_pending_));
    alignas(64) std::uint16_t last[n_lanes];
    _mm512_store_si512(last, states_);
    std::copy_n(last, n_lanes, states);
    missing |=
        std::uint32_t(_mm512_test_epi16_mask(seen_, _mm512_set1_epi16(packed_row_is_missing)) != 0);
  }

 private:
  EncodeConstants<Value> constants_;
  const std::uint32_t* rows_;
  const std::uint16_t* next_states_;
  const std::uint16_t* contexts_;
  const std::uint8_t* values_;
  const std::uint16_t* row_indices_;
  PrefetchTargets targets_;
  __m512i states_, seen_ = _mm512_setzero_si512();
  std::uint8_t* out_;
  std::uint64_t pending_, n_pending_;
  std::uint8_t* pieces_out_;
  Lanes next_;
};

// Encodes whole rounds of 32 values, from the last of n to the first.
template <class Value>
void encode_packed_rounds(ForwardBits& bits, const std::uint32_t* rows,
                          const std::uint16_t* next_states, std::uint32_t* states,
                          const std::uint16_t* contexts, const std::uint8_t* values,
                          const std::uint16_t* row_indices, std::size_t n, PrefetchTargets targets,
                          std::uint32_t& missing) {
  if (n == 0) return;
  PendingPieces pieces;
  RoundWriter<Value> writer(bits, rows, next_states, states, contexts, values, row_indices, n,
                            targets, pieces);
  for (std::size_t i = n; i > 0;) writer.write_round(i -= n_lanes, pieces);
  writer.store_state(bits, states, missing, pieces);
}

}  // namespace
DELTAHUB_END
