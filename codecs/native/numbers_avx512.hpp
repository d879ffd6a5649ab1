// All 32 lanes at once: the even ones in one vector, the odd ones in another, so that 16-bit fields
// of both side by side are in the order of the lanes. The digits of a round (of half of one, where
// a number has 32 bits) lie within the 128 bytes that end where it begins. These can be loaded
// before it is known where each number's own are; then a shuffle of two registers picks them.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "entries.hpp"
#include "kernels.hpp"
#include "lanes_avx2.hpp"
#include "stream.hpp"

#define DELTAHUB_HAS_NUMBERS

DELTAHUB_BEGIN
namespace {

// How many windows of 128 bytes a round's digits take, and how many bits of each lie before the
// byte of the position.
template <class Number>
inline constexpr int n_windows = sizeof(Number) <= 2 ? 1 : 2;
inline constexpr std::size_t window_bits = 8 * 124;
static_assert(most_round_digits<std::uint16_t> <= window_bits);
static_assert(most_round_digits<std::uint32_t> / 2 <= window_bits);

// What must be left of a stream for the rounds below.
template <class Number>
inline constexpr std::size_t fast_room =
    window_bits + (n_windows<Number> == 1 ? 0 : most_round_digits<Number> / 2);

struct Lanes {
  __m512i even, odd;
};

inline __m512i load_vector(const void* at) { return _mm512_loadu_si512(at); }

// low's lowest n_digits digits below those of `high`, which has zeros there.
inline __m512i joined_digits(__m512i high, __m512i low, __m512i n_digits) {
  const __m512i above = _mm512_sllv_epi32(_mm512_set1_epi32(-1), n_digits);
  return _mm512_ternarylogic_epi32(high, low, above, 0xf4);  // high | (low & ~above)
}

// The low halves of each vector's elements side by side, and fields of 16 bits apart.
inline __m512i side_by_side(Lanes lanes) {
  return _mm512_ternarylogic_epi32(lanes.even, _mm512_slli_epi32(lanes.odd, 16),
                                   _mm512_set1_epi32(0xffff), 0xe4);  // third ? first : second
}
inline Lanes apart(__m512i fields) {
  return {_mm512_and_si512(fields, _mm512_set1_epi32(0xffff)), _mm512_srli_epi32(fields, 16)};
}

// 32 values in the order of the lanes, as two vectors, and back.
struct Ordered {
  __m512i first, second;
};
inline Ordered ordered(Lanes lanes) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  return {_mm512_permutex2var_epi32(lanes.even, low, lanes.odd),
          _mm512_permutex2var_epi32(lanes.even, high, lanes.odd)};
}
inline Lanes lanes_of(Ordered values) {
  const __m512i even =
      _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  return {_mm512_permutex2var_epi32(values.first, even, values.second),
          _mm512_permutex2var_epi32(values.first, odd, values.second)};
}

// Gathers take long on AMD's processors, and much longer on those of Intel's that must keep them
// from leaking data; none of these has bfloat16 beside what the kernels need.
inline bool has_fast_gathers() {
  return __builtin_cpu_is("intel") && __builtin_cpu_supports("avx512bf16");
}

// entries[index].
template <bool GATHERS>
inline __m512i entries_at(const Entry* entries, __m512i index) {
  if constexpr (GATHERS) return _mm512_i32gather_epi32(index, entries, 4);
  return _mm512_inserti64x4(
      _mm512_castsi256_si512(entries_at(entries, _mm512_castsi512_si256(index))),
      entries_at(entries, _mm512_extracti64x4_epi64(index, 1)), 1);
}

template <class Number>
inline void store_numbers(std::uint8_t* out, Lanes values) {
  if constexpr (sizeof(Number) == 4) {
    const Ordered numbers = ordered(values);
    _mm512_storeu_si512(out, numbers.first);
    _mm512_storeu_si512(out + 64, numbers.second);
  } else if constexpr (sizeof(Number) == 2) {
    _mm512_storeu_si512(out, side_by_side(values));
  } else {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                        _mm512_cvtepi16_epi8(side_by_side(values)));
  }
}

// 128 bytes of a stream, of which the position lies in the 125th.
struct Window {
  __m512i low[2], high[2];  // 32 pieces of 32 bits, and the piece after each
  std::uint32_t end;        // where the position lies, in bits

  Window(const std::uint8_t* bytes, std::size_t position)
      : end(std::uint32_t(window_bits + position % 8)) {
    const std::uint8_t* const at = bytes + position / 8 - window_bits / 8;
    for (int v = 0; v < 2; ++v) {
      low[v] = load_vector(at + 64 * v);
      high[v] = load_vector(at + 64 * v + 4);
    }
  }
  // The 32 bits from each offset on.
  __m512i from(__m512i offset) const {
    const __m512i piece = _mm512_srli_epi32(offset, 5);
    return _mm512_shrdv_epi32(_mm512_permutex2var_epi32(low[0], piece, low[1]),
                              _mm512_permutex2var_epi32(high[0], piece, high[1]), offset);
  }
};

// What the lanes of a round read: from one window, or lanes 16 to 31 from another.
template <int WINDOWS>
struct Windows;

template <>
struct Windows<1> {
  Window all;

  Windows(const BackwardBits& bits, std::uint32_t) : all(bits.bytes(), bits.position()) {}
  __m512i ends() const { return _mm512_set1_epi32(int(all.end)); }
  __m512i from(__m512i offset) const { return all.from(offset); }
};

template <>
struct Windows<2> {
  static constexpr __mmask16 is_second = 0xff00;
  Window first, second;

  Windows(const BackwardBits& bits, std::uint32_t n_first)
      : first(bits.bytes(), bits.position()), second(bits.bytes(), bits.position() - n_first) {}
  __m512i ends() const {
    return _mm512_mask_mov_epi32(_mm512_set1_epi32(int(first.end)), is_second,
                                 _mm512_set1_epi32(int(second.end)));
  }
  __m512i from(__m512i offset) const {
    return _mm512_mask_mov_epi32(first.from(offset), is_second, second.from(offset));
  }
};

struct alignas(64) Bytes {
  std::uint8_t bytes[64];
};

// Totals of groups of four lanes lie in byte 6 of each element of 64 bits, and byte 1 is zero. For
// each group this picks the totals of those before it within its window; for the first of a window,
// all of the window's.
template <int WINDOWS>
inline constexpr Bytes group_totals = [] {
  constexpr int together = 8 / WINDOWS;
  Bytes table{};
  for (int group = 0; group < 8; ++group)
    for (int other = 0; other < 8; ++other) {
      const bool is_seen =
          other / together == group / together && (other < group || group % together == 0);
      table.bytes[8 * group + other] = std::uint8_t(is_seen ? 8 * other + 6 : 1);
    }
  return table;
}();

// From the sum in each element of 64 bits, one for each pair of lanes; for the first group of a
// window zero.
template <int WINDOWS>
inline constexpr Bytes group_sums = [] {
  Bytes table{};
  for (int group = 0; group < 8; ++group)
    for (int byte = 0; byte < 8; ++byte)
      table.bytes[8 * group + byte] =
          group % (8 / WINDOWS) == 0 ? 0x80 : std::uint8_t(group % 2 * 8 + byte % 4);
  return table;
}();

template <class Number, bool GATHERS>
std::size_t fast_rounds(Kernels::Tables tables, BackwardBits& shared_bits,
                        std::uint32_t* shared_states, const std::uint16_t* contexts,
                        std::uint8_t* out, std::size_t i, std::size_t n) {
  constexpr int number_bits = 8 * int(sizeof(Number));
  constexpr int windows = n_windows<Number>;
  BackwardBits bits = shared_bits;
  const __m128i log = _mm_cvtsi32_si128(tables.table_log);
  Lanes states = lanes_of({load_vector(shared_states), load_vector(shared_states + 16)});
  for (; i + n_lanes <= n && bits.has_room(fast_room<Number>); i += n_lanes) {
    const __m512i context = load_vector(contexts + i);
    const Lanes table = apart(_mm512_sll_epi16(_mm512_srli_epi16(context, 12), log));
    const Lanes entry = {
        entries_at<GATHERS>(tables.entries, _mm512_or_si512(table.even, states.even)),
        entries_at<GATHERS>(tables.entries, _mm512_or_si512(table.odd, states.odd)),
    };
    const __m512i fields = side_by_side(entry);
    const __m512i digits = _mm512_and_si512(fields, _mm512_set1_epi16(15));
    const __m512i width =
        _mm512_and_si512(_mm512_srli_epi16(fields, 4), _mm512_set1_epi16(63));
    const __m512i shift = _mm512_and_si512(context, _mm512_set1_epi16(63));
    const __m512i used = _mm512_min_epu16(
        _mm512_add_epi16(width, _mm512_add_epi16(shift, digits)),
        _mm512_add_epi16(digits, _mm512_set1_epi16(number_bits - 1)));

    // The digits that each lane of a group of four and those before it use.
    __m512i through = _mm512_add_epi16(used, _mm512_slli_epi64(used, 16));
    through = _mm512_add_epi16(through, _mm512_slli_epi64(through, 32));
    const __m512i sums = _mm512_sad_epu8(
        _mm512_permutexvar_epi8(load_vector(group_totals<windows>.bytes), through),
        _mm512_setzero_si512());
    const __m512i before = _mm512_shuffle_epi8(sums, load_vector(group_sums<windows>.bytes));
    const std::uint32_t n_first = std::uint32_t(_mm_cvtsi128_si32(_mm512_castsi512_si128(sums)));
    const Windows<windows> from(bits, n_first);
    bits.skip_unchecked(n_first);
    if constexpr (windows == 2)
      bits.skip_unchecked(std::uint32_t(_mm_cvtsi128_si32(_mm512_extracti32x4_epi32(sums, 2))));

    const auto read = [&](__m512i own_through, __m512i own_entry, __m512i n_low, __m512i n_raw,
                          __m512i& state) {
      const __m512i end = _mm512_sub_epi32(from.ends(), own_through);
      const __m512i offset = _mm512_sub_epi32(end, before);
      const __m512i low = from.from(offset);
      __m512i raw;
      if constexpr (windows == 1)
        raw = _mm512_srlv_epi32(low, n_low);
      else
        raw = from.from(_mm512_add_epi32(offset, n_low));
      const __m512i next =
          _mm512_and_si512(_mm512_srli_epi32(own_entry, 10), _mm512_set1_epi32(2047));
      state = joined_digits(next, low, n_low);
      return joined_digits(_mm512_sllv_epi32(_mm512_srai_epi32(own_entry, 21), n_raw), raw, n_raw);
    };
    const Lanes own = apart(through), n_low = apart(digits),
                n_raw = apart(_mm512_sub_epi16(used, digits));
    store_numbers<Number>(out + i * sizeof(Number),
                          {read(own.even, entry.even, n_low.even, n_raw.even, states.even),
                           read(own.odd, entry.odd, n_low.odd, n_raw.odd, states.odd)});
  }
  const Ordered last = ordered(states);
  _mm512_storeu_si512(shared_states, last.first);
  _mm512_storeu_si512(shared_states + 16, last.second);
  shared_bits = bits;
  return i;
}

// Rounds of 32 numbers while there is room; returns where it stopped.
template <class Number>
std::size_t fast_numbers(Kernels::Tables tables, BackwardBits& bits, std::uint32_t* states,
                         const std::uint16_t* contexts, std::uint8_t* out, std::size_t i,
                         std::size_t n) {
  const auto rounds = has_fast_gathers() ? fast_rounds<Number, true> : fast_rounds<Number, false>;
  return rounds(tables, bits, states, contexts, out, i, n);
}

}  // namespace
DELTAHUB_END
