// All 32 lanes at once: what is known of each number lies in 16 bits of one vector, in the order of
// the lanes. The digits of a round lie within the 128 bytes that end where it begins, but for rare
// rounds of numbers of 32 bits. These bytes can be loaded before it is known where each number's own
// are; then a shuffle of two registers picks them.
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

#define DELTAHUB_HAS_NUMBERS
#define DELTAHUB_HAS_TWO_NUMBERS

DELTAHUB_BEGIN
namespace {

// How many bits of a window of 128 bytes lie before the byte of the position.
inline constexpr std::size_t window_bits = 8 * 124;
// Whether the digits of a round are sure to lie there.
template <class Number>
inline constexpr bool always_fits = most_round_digits<Number> <= window_bits;

// What must be left of a stream for the rounds below.
template <class Number>
inline constexpr std::size_t fast_room =
    always_fits<Number> ? window_bits : most_round_digits<Number>;

// For ternary logic: which of two vectors each bit of the third one takes, and the like.
constexpr int first_or_second_by_third = 0xe4, second_or_first_by_third = 0xd8;
constexpr int high_or_low_without_third = 0xf4;

// What rounds need again and again, as a member of what makes them: constants that a compiler knows
// it makes anew in each round, which takes longer than to load them.
template <class Number>
struct RoundConstants {
  __m512i table = _mm512_set1_epi16(short(context_table_bits));
  __m512i shift = _mm512_set1_epi16(63);
  __m512i digits = _mm512_set1_epi16(31);
  __m512i most_raw = _mm512_set1_epi16(8 * int(sizeof(Number)) - 1);
  __m512i one = _mm512_set1_epi16(1);
  __m512i low_half = _mm512_set1_epi32(0xffff);

  // The low halves of `low` below the high ones of `high`.
  __m512i low_halves(__m512i high, __m512i low) const {
    return _mm512_ternarylogic_epi32(high, low, low_half, second_or_first_by_third);
  }
  __m512i side_by_side(Lanes lanes) const {
    return low_halves(_mm512_slli_epi32(lanes.odd, 16), lanes.even);
  }
};
inline Lanes apart(__m512i fields) {
  return {_mm512_and_si512(fields, _mm512_set1_epi32(0xffff)), _mm512_srli_epi32(fields, 16)};
}

// 32 values of 32 bits in the order of the lanes.
struct Ordered {
  __m512i first, second;
};
inline Ordered ordered(Lanes lanes) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  return {_mm512_permutex2var_epi32(lanes.even, low, lanes.odd),
          _mm512_permutex2var_epi32(lanes.even, high, lanes.odd)};
}

// low's lowest n_digits digits below those of `high`, which has zeros there.
inline __m512i joined_16(__m512i high, __m512i low, __m512i n_digits) {
  const __m512i above = _mm512_sllv_epi16(_mm512_set1_epi16(-1), n_digits);
  return _mm512_ternarylogic_epi32(high, low, above, high_or_low_without_third);
}
inline __m512i joined_32(__m512i high, __m512i low, __m512i n_digits) {
  const __m512i above = _mm512_sllv_epi32(_mm512_set1_epi32(-1), n_digits);
  return _mm512_ternarylogic_epi32(high, low, above, high_or_low_without_third);
}

// 128 bytes of a stream, of which the position lies in the 125th.
struct Window {
  const std::uint8_t* at;
  std::uint32_t end;  // where the position lies, in bits

  Window(const std::uint8_t* bytes, std::size_t position)
      : at(bytes + position / 8 - window_bits / 8), end(std::uint32_t(window_bits + position % 8)) {}

  // The 16 bits from each of 32 offsets on. one: in each element.
  __m512i from_16(__m512i offset, __m512i one) const {
    const __m512i piece = _mm512_srli_epi16(offset, 4);
    const __m512i low = load_vector(at), high = load_vector(at + 64);
    const __m512i next = _mm512_add_epi16(piece, one);  // there is one: see above
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

// Totals of groups of four lanes lie in byte 6 of each element of 64 bits, and byte 1 is zero. For
// each group this picks the totals of those before it; for the first one, all totals.
inline constexpr Bytes group_totals = [] {
  Bytes table{};
  for (int group = 0; group < 8; ++group)
    for (int other = 0; other < 8; ++other)
      table.bytes[8 * group + other] =
          std::uint8_t(group == 0 || other < group ? 8 * other + 6 : 1);
  return table;
}();

// From the sum in each element of 64 bits, one for each of its four lanes; for the first group zero.
inline constexpr Bytes group_sums = [] {
  Bytes table{};
  for (int group = 0; group < 8; ++group)
    for (int byte = 0; byte < 8; ++byte)
      table.bytes[8 * group + byte] =
          group == 0 ? 0x80 : std::uint8_t(group % 2 * 8 + byte % 2);
  return table;
}();

// One sequence in mid-reading.
template <class Number>
class Reader {
 public:
  Reader(const Entry* entries, const BackwardBits& bits, const std::uint32_t* states,
         const std::uint16_t* contexts, std::uint8_t* out, Ahead ahead)
      : bits_(bits),
        entries_(entries),
        states_(_mm512_inserti64x4(
            _mm512_castsi256_si512(_mm512_cvtepi32_epi16(load_vector(states))),
            _mm512_cvtepi32_epi16(load_vector(states + 16)), 1)),
        contexts_(contexts),
        out_(out),
        ahead_(ahead) {}

  // Whether the next round has its digits, where there was room for the first one.
  bool has_digits() const { return bits_.position() >= fast_room<Number>; }

  // Numbers i to i + 31. False, and nothing is read, where their digits are not all in the window.
  bool read_round(std::size_t i) {
    const __m512i context = load_vector(contexts_ + i);
    const __m512i index = _mm512_ternarylogic_epi32(context, states_, constants_.table,
                                                    first_or_second_by_third);
    const Lanes entry = entries_of_lanes(entries_, index);
    const __m512i low = constants_.side_by_side(entry);
    const __m512i high = constants_.low_halves(entry.odd, _mm512_srli_epi32(entry.even, 16));
    const __m512i digits = _mm512_and_si512(high, constants_.digits);
    const __m512i shift = _mm512_and_si512(context, constants_.shift);
    const __m512i raw = _mm512_min_epu16(_mm512_add_epi16(_mm512_srli_epi16(low, 10), shift),
                                         constants_.most_raw);

    // The digits that each lane and those before it use: first within its group of four.
    __m512i through = _mm512_add_epi16(raw, digits);
    through = _mm512_add_epi16(through, _mm512_slli_epi64(through, 16));
    through = _mm512_add_epi16(through, _mm512_slli_epi64(through, 32));
    const __m512i sums = _mm512_sad_epu8(
        _mm512_permutexvar_epi8(load_vector(group_totals.bytes), through), _mm512_setzero_si512());
    through =
        _mm512_add_epi16(through, _mm512_shuffle_epi8(sums, load_vector(group_sums.bytes)));
    const auto all = std::uint32_t(_mm_cvtsi128_si32(_mm512_castsi512_si128(sums)));
    if (!always_fits<Number> && all > window_bits) [[unlikely]] return false;

    ask_for_round<Number>(ahead_, i);
    const Window window(bits_.bytes(), bits_.position());
    bits_.skip_unchecked(all);
    const __m512i offset = _mm512_sub_epi16(_mm512_set1_epi16(short(window.end)), through);
    states_ = joined_16(low, window.from_16(offset, constants_.one), digits);
    const __m512i raw_offset = _mm512_add_epi16(offset, digits);
    if constexpr (sizeof(Number) <= 2) {
      const __m512i mant = _mm512_sllv_epi16(_mm512_srai_epi16(high, 5), raw);
      const __m512i numbers = joined_16(mant, window.from_16(raw_offset, constants_.one), raw);
      if constexpr (sizeof(Number) == 2)
        _mm512_storeu_si512(out_ + 2 * i, numbers);
      else
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out_ + i), _mm512_cvtepi16_epi8(numbers));
    } else {
      const auto half = [&](__m512i own_entry, __m512i own_offset, __m512i n_digits) {
        const __m512i mant = _mm512_sllv_epi32(_mm512_srai_epi32(own_entry, 21), n_digits);
        return joined_32(mant, window.from_32(own_offset), n_digits);
      };
      const Lanes offsets = apart(raw_offset), n_raw = apart(raw);
      const Ordered numbers = ordered({half(entry.even, offsets.even, n_raw.even),
                                       half(entry.odd, offsets.odd, n_raw.odd)});
      _mm512_storeu_si512(out_ + 4 * i, numbers.first);
      _mm512_storeu_si512(out_ + 4 * i + 64, numbers.second);
    }
    return true;
  }

  void leave(BackwardBits& bits, std::uint32_t* states) const {
    bits = bits_;
    const __m512i whole = _mm512_and_si512(states_, _mm512_set1_epi16(table_stride - 1));
    _mm512_storeu_si512(states, _mm512_cvtepu16_epi32(_mm512_castsi512_si256(whole)));
    _mm512_storeu_si512(states + 16, _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(whole, 1)));
  }

 private:
  RoundConstants<Number> constants_;
  BackwardBits bits_;
  const Entry* entries_;
  // Bits above those of a state are anything.
  __m512i states_;
  const std::uint16_t* contexts_;
  std::uint8_t* out_;
  Ahead ahead_;
};

// Rounds of 32 numbers while there is room and their digits are near; returns where it stopped.
template <class Number>
std::size_t fast_numbers(const Entry* entries, BackwardBits& bits, std::uint32_t* states,
                         const std::uint16_t* contexts, std::uint8_t* out, std::size_t i,
                         std::size_t n, Ahead ahead) {
  if (!bits.has_room(fast_room<Number>)) return i;
  Reader<Number> reader(entries, bits, states, contexts, out, ahead);
  while (i + n_lanes <= n && reader.has_digits() && reader.read_round(i)) i += n_lanes;
  reader.leave(bits, states);
  return i;
}

// The same of two sequences in turn: a round waits for its look-ups, which depend on the round
// before, and meanwhile the other sequence goes on. The first may stop a round later. All that the
// loop needs should fit the registers, so that as much as possible of both rounds is in hand.
template <class Number>
void fast_two_numbers(const Entry* entries, BackwardBits (&bits)[2],
                      std::uint32_t* const (&states)[2], const std::uint16_t* const (&contexts)[2],
                      std::uint8_t* const (&out)[2], std::size_t n, std::size_t (&done)[2],
                      const Ahead (&ahead)[2]) {
  constexpr std::size_t room = fast_room<Number>;
  if (!bits[0].has_room(room) || !bits[1].has_room(room)) return;
  Reader<Number> first(entries, bits[0], states[0], contexts[0], out[0], ahead[0]);
  Reader<Number> second(entries, bits[1], states[1], contexts[1], out[1], ahead[1]);
  std::size_t i = 0, more = 0;
  for (; i + n_lanes <= n && first.has_digits() && second.has_digits(); i += n_lanes) {
    if (!first.read_round(i)) break;
    if (!second.read_round(i)) {
      more = n_lanes;
      break;
    }
  }
  done[0] = i + more, done[1] = i;
  first.leave(bits[0], states[0]);
  second.leave(bits[1], states[1]);
}

}  // namespace
DELTAHUB_END
