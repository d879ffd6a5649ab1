// Decodes all 32 lanes at a time, in vectors with one 16-bit field for each lane. The bits of a
// round lie within the 128 bytes before its position, except in rare rounds of 32-bit values. So
// these bytes are loaded before it is known where the bits of each value begin; then a shuffle of
// two registers selects them.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/ans/bit_stream.hpp"
#include "kernels/ans/prefetch.hpp"
#include "kernels/ans/table_entries.hpp"
#include "kernels/kernels.hpp"
#include "kernels/simd/lanes_avx512.hpp"
#ifdef DELTAHUB_GATHERS
#include "kernels/simd/table_gathers_avx512.hpp"
#else
#include "kernels/simd/table_loads_avx512.hpp"
#endif

#define DELTAHUB_HAS_DECODE_ROUNDS
#define DELTAHUB_HAS_DECODE_TWO

DELTAHUB_BEGIN
namespace {

// How many bits of a 128-byte window lie before the byte of the position.
inline constexpr std::size_t window_bits = 8 * 124;
// Whether the bits of any round fit into a window.
template <class Value>
inline constexpr bool always_fits = max_round_bits<Value> <= window_bits;

// How many bits must be unread for a round.
template <class Value>
inline constexpr std::size_t min_unread_bits =
    always_fits<Value> ? window_bits : max_round_bits<Value>;

// Truth tables for ternary logic. first_or_second_by_third: bits of the first operand where the
// third has ones, of the second where it has zeros; the others likewise.
constexpr int first_or_second_by_third = 0xe4, second_or_first_by_third = 0xd8;
constexpr int high_or_low_without_third = 0xf4;

// Constants of a round, as a member, because a constant that the compiler knows is built again in
// each round, which takes longer than a load.
template <class Value>
struct DecodeConstants {
  __m512i table = _mm512_set1_epi16(short(context_table_bits));
  __m512i shift = _mm512_set1_epi16(63);
  __m512i state_bits = _mm512_set1_epi16(31);
  __m512i max_raw = _mm512_set1_epi16(8 * int(sizeof(Value)) - 1);
  __m512i one = _mm512_set1_epi16(1);
  __m512i low_half = _mm512_set1_epi32(0xffff);

  // Low halves from `low`, high halves from `high`.
  __m512i low_halves(__m512i high, __m512i low) const {
    return _mm512_ternarylogic_epi32(high, low, low_half, second_or_first_by_third);
  }
  __m512i interleaved(Lanes lanes) const {
    return low_halves(_mm512_slli_epi32(lanes.odd, 16), lanes.even);
  }
};
inline Lanes split_lanes(__m512i fields) {
  return {_mm512_and_si512(fields, _mm512_set1_epi32(0xffff)), _mm512_srli_epi32(fields, 16)};
}

// 32 elements of 32 bits in the order of the lanes.
struct InLaneOrder {
  __m512i first, second;
};
inline InLaneOrder in_lane_order(Lanes lanes) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  return {_mm512_permutex2var_epi32(lanes.even, low, lanes.odd),
          _mm512_permutex2var_epi32(lanes.even, high, lanes.odd)};
}

// The lowest n_bits bits of `low`, below the bits of `high`, which has zeros there.
inline __m512i joined_16(__m512i high, __m512i low, __m512i n_bits) {
  const __m512i above = _mm512_sllv_epi16(_mm512_set1_epi16(-1), n_bits);
  return _mm512_ternarylogic_epi32(high, low, above, high_or_low_without_third);
}
inline __m512i joined_32(__m512i high, __m512i low, __m512i n_bits) {
  const __m512i above = _mm512_sllv_epi32(_mm512_set1_epi32(-1), n_bits);
  return _mm512_ternarylogic_epi32(high, low, above, high_or_low_without_third);
}

// 128 bytes of a stream. The position lies in the 125th byte.
struct Window {
  const std::uint8_t* at;
  std::uint32_t end;  // the position, in bits from `at` on

  Window(const std::uint8_t* bytes, std::size_t position)
      : at(bytes + position / 8 - window_bits / 8),
        end(std::uint32_t(window_bits + position % 8)) {}

  // The 16 bits from each of 32 offsets on. one: the vector of ones.
  __m512i from_16(__m512i offset, __m512i one) const {
    const __m512i piece = _mm512_srli_epi16(offset, 4);
    const __m512i low = load_vector(at), high = load_vector(at + 64);
    // it exists: the position lies in the 125th byte
    const __m512i next = _mm512_add_epi16(piece, one);
    return _mm512_shrdv_epi16(_mm512_permutex2var_epi16(low, piece, high),
                              _mm512_permutex2var_epi16(low, next, high), offset);
  }
  // The 32 bits from each of 16 offsets on.
  __m512i from_32(__m512i offset) const {
    const __m512i piece = _mm512_srli_epi32(offset, 5);
    return _mm512_shrdv_epi32(
        _mm512_permutex2var_epi32(load_vector(at), piece, load_vector(at + 64)),
        _mm512_permutex2var_epi32(load_vector(at + 4), piece, load_vector(at + 68)), offset);
  }
};

struct alignas(64) Bytes {
  std::uint8_t bytes[64];
};

// A byte permutation. The bit count of each group of four lanes lies in byte 6 of its 64-bit
// element; byte 1 of an element is zero. For each group it selects the counts of all groups before
// it; for the first group, the counts of all groups.
inline constexpr Bytes group_totals = [] {
  Bytes table{};
  for (int group = 0; group < 8; ++group)
    for (int other = 0; other < 8; ++other)
      table.bytes[8 * group + other] =
          std::uint8_t(group == 0 || other < group ? 8 * other + 6 : 1);
  return table;
}();

// A byte shuffle: spreads the sum in each 64-bit element to its four lanes; zero for the first
// group.
inline constexpr Bytes group_sums = [] {
  Bytes table{};
  for (int group = 0; group < 8; ++group)
    for (int byte = 0; byte < 8; ++byte)
      table.bytes[8 * group + byte] =
          group == 0 ? 0x80 : std::uint8_t(group % 2 * 8 + byte % 2);
  return table;
}();

// One sequence during decoding.
template <class Value>
class Reader {
 public:
  Reader(const Entry* entries, const BackwardBits& bits, const std::uint32_t* states,
         const std::uint16_t* contexts, std::uint8_t* out, PrefetchTargets targets)
      : bits_(bits),
        entries_(entries),
        states_(
            _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(load_vector(states))),
                               _mm512_cvtepi32_epi16(load_vector(states + 16)), 1)),
        contexts_(contexts),
        out_(out),
        targets_(targets) {}

  // Whether enough bits are unread for the next round. has_unread must have held for the first
  // round.
  bool has_round_bits() const { return bits_.position() >= min_unread_bits<Value>; }

  // Decodes values i to i + 31. Returns false, and reads nothing, if their bits exceed the window.
  bool read_round(std::size_t i) {
    const __m512i context = load_vector(contexts_ + i);
    const __m512i index = _mm512_ternarylogic_epi32(context, states_, constants_.table,
                                                    first_or_second_by_third);
    const Lanes entry = entries_of_lanes(entries_, index);
    const __m512i low = constants_.interleaved(entry);
    const __m512i high = constants_.low_halves(entry.odd, _mm512_srli_epi32(entry.even, 16));
    const __m512i state_bits = _mm512_and_si512(high, constants_.state_bits);
    const __m512i shift = _mm512_and_si512(context, constants_.shift);
    const __m512i raw =
        _mm512_min_epu16(_mm512_add_epi16(_mm512_srli_epi16(low, 10), shift), constants_.max_raw);

    // How many bits each lane and the lanes before it use: first within its group of four lanes.
    __m512i through = _mm512_add_epi16(raw, state_bits);
    through = _mm512_add_epi16(through, _mm512_slli_epi64(through, 16));
    through = _mm512_add_epi16(through, _mm512_slli_epi64(through, 32));
    const __m512i sums = _mm512_sad_epu8(
        _mm512_permutexvar_epi8(load_vector(group_totals.bytes), through), _mm512_setzero_si512());
    through =
        _mm512_add_epi16(through, _mm512_shuffle_epi8(sums, load_vector(group_sums.bytes)));
    const auto all = std::uint32_t(_mm_cvtsi128_si32(_mm512_castsi512_si128(sums)));
    if (!always_fits<Value> && all > window_bits) [[unlikely]]
      return false;

    prefetch_round<Value>(targets_, i);
    const Window window(bits_.bytes(), bits_.position());
    bits_.skip_unchecked(all);
    const __m512i offset = _mm512_sub_epi16(_mm512_set1_epi16(short(window.end)), through);
    states_ = joined_16(low, window.from_16(offset, constants_.one), state_bits);
    const __m512i raw_offset = _mm512_add_epi16(offset, state_bits);
    if constexpr (sizeof(Value) <= 2) {
      const __m512i mant = _mm512_sllv_epi16(_mm512_srai_epi16(high, 5), raw);
      const __m512i values = joined_16(mant, window.from_16(raw_offset, constants_.one), raw);
      if constexpr (sizeof(Value) == 2)
        _mm512_storeu_si512(out_ + 2 * i, values);
      else
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out_ + i), _mm512_cvtepi16_epi8(values));
    } else {
      const auto half = [&](__m512i own_entry, __m512i own_offset, __m512i n_bits) {
        const __m512i mant = _mm512_sllv_epi32(_mm512_srai_epi32(own_entry, 21), n_bits);
        return joined_32(mant, window.from_32(own_offset), n_bits);
      };
      const Lanes offsets = split_lanes(raw_offset), n_raw = split_lanes(raw);
      const InLaneOrder values = in_lane_order(
          {half(entry.even, offsets.even, n_raw.even), half(entry.odd, offsets.odd, n_raw.odd)});
      _mm512_storeu_si512(out_ + 4 * i, values.first);
      _mm512_storeu_si512(out_ + 4 * i + 64, values.second);
    }
    return true;
  }

  void store_state(BackwardBits& bits, std::uint32_t* states) const {
    bits = bits_;
    const __m512i whole = _mm512_and_si512(states_, _mm512_set1_epi16(table_stride - 1));
    _mm512_storeu_si512(states, _mm512_cvtepu16_epi32(_mm512_castsi512_si256(whole)));
    _mm512_storeu_si512(states + 16, _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(whole, 1)));
  }

 private:
  DecodeConstants<Value> constants_;
  BackwardBits bits_;
  const Entry* entries_;
  // Bits above those of a state are arbitrary.
  __m512i states_;
  const std::uint16_t* contexts_;
  std::uint8_t* out_;
  PrefetchTargets targets_;
};

// Decodes rounds of 32 values while enough bits are unread and fit into the window; returns the
// index of the next value.
template <class Value>
std::size_t decode_rounds(const Entry* entries, BackwardBits& bits, std::uint32_t* states,
                          const std::uint16_t* contexts, std::uint8_t* out, std::size_t i,
                          std::size_t n, PrefetchTargets targets) {
  if (!bits.has_unread(min_unread_bits<Value>)) return i;
  Reader<Value> reader(entries, bits, states, contexts, out, targets);
  while (i + n_lanes <= n && reader.has_round_bits() && reader.read_round(i)) i += n_lanes;
  reader.store_state(bits, states);
  return i;
}

// The same for two sequences, in turn: while a round waits for its table loads, which depend on
// the round before, the other sequence goes on. The first may end a round later. Everything in the
// loop should fit into registers, so that the two rounds overlap as much as possible.
template <class Value>
void decode_rounds_of_two(const Entry* entries, BackwardBits (&bits)[2],
                          std::uint32_t* const (&states)[2],
                          const std::uint16_t* const (&contexts)[2], std::uint8_t* const (&out)[2],
                          std::size_t n, std::size_t (&done)[2],
                          const PrefetchTargets (&targets)[2]) {
  constexpr std::size_t min_bits = min_unread_bits<Value>;
  if (!bits[0].has_unread(min_bits) || !bits[1].has_unread(min_bits)) return;
  Reader<Value> first(entries, bits[0], states[0], contexts[0], out[0], targets[0]);
  Reader<Value> second(entries, bits[1], states[1], contexts[1], out[1], targets[1]);
  std::size_t i = 0, more = 0;
  for (; i + n_lanes <= n && first.has_round_bits() && second.has_round_bits(); i += n_lanes) {
    if (!first.read_round(i)) break;
    if (!second.read_round(i)) {
      more = n_lanes;
      break;
    }
  }
  done[0] = i + more, done[1] = i;
  first.store_state(bits[0], states[0]);
  second.store_state(bits[1], states[1]);
}

}  // namespace
DELTAHUB_END
