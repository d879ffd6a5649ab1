// Eight lanes at a time, in what vectors of 16 bits can do: all but to look up entries and to take
// digits out of the stream.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/vectors.hpp"
#include "kernels/ans/bit_stream.hpp"
#include "kernels/ans/prefetch.hpp"
#include "kernels/ans/table_entries.hpp"
#include "kernels/kernels.hpp"

DELTAHUB_BEGIN
namespace {

// What must be left of a stream for the rounds below.
template <class Number>
inline constexpr std::size_t fast_room = most_round_digits<Number>;

// short_masks[n]: the n lowest bits set.
constexpr auto short_masks = [] {
  std::array<std::uint32_t, 16> masks{};
  for (unsigned n = 0; n < 16; ++n) masks[n] = (1u << n) - 1;
  return masks;
}();

// A part of each number of a round, where one number after the other reads it.
struct alignas(16) Parts {
  std::uint16_t of[n_lanes];

  void set(std::size_t lane, Uint16x8 vector) { store_vector(of + lane, vector); }
};

// 2^n of eight n below 16.
inline Uint16x8 powers(Uint16x8 n) {
  const auto both = Uint32x4(n);
  const auto power = [](Uint32x4 exponent) {  // a float's
    return Uint32x4(__builtin_convertvector(Float32x4(exponent + (127u << 23)), Int32x4));
  };
  return Uint16x8(power(both << 23) | power((both & 0xffff0000u) << 7) << 16);
}

// Of each of eight numbers the sum of those up to it.
inline Uint16x8 running_sums(Uint16x8 of) {
  const Uint16x8 none = {};
  of += __builtin_shufflevector(none, of, 7, 8, 9, 10, 11, 12, 13, 14);
  of += __builtin_shufflevector(none, of, 6, 7, 8, 9, 10, 11, 12, 13);
  return of + __builtin_shufflevector(none, of, 4, 5, 6, 7, 8, 9, 10, 11);
}

// Rounds of 32 numbers of at most 16 bits while there is room; returns where it stopped.
template <class Number>
std::size_t fast_numbers(const Entry* entries, BackwardBits& shared_bits,
                         std::uint32_t* shared_states, const std::uint16_t* contexts,
                         std::uint8_t* out, std::size_t i, std::size_t n, Ahead ahead) {
  static_assert(sizeof(Number) <= 2);
  constexpr std::size_t room = fast_room<Number>, group = 8;
  constexpr std::uint16_t most_raw = 8 * sizeof(Number) - 1;
  BackwardBits bits = shared_bits;
  std::uint32_t states[n_lanes];
  std::copy_n(shared_states, n_lanes, states);
  for (; i + n_lanes <= n && bits.has_room(room); i += n_lanes) {
    ask_for_round<Number>(ahead, i);
    const std::size_t position = bits.position();
    const std::uint8_t* const bytes = bits.bytes() + position / 8 - room / 8;
    Parts table, n_digits, n_raw, byte, bit, next, leading;
#pragma GCC unroll 4
    for (std::size_t lane = 0; lane < n_lanes; lane += group)
      table.set(lane, load_vector<Uint16x8>(contexts + i + lane) & context_table_bits);
    keep_in_memory(table);
    const auto entry = [&](std::size_t lane) {
      return entries[table.of[lane] + states[lane]];
    };
    Uint16x8 end = Uint16x8{} + std::uint16_t(position % 8 + room);  // in bits from there on
    // First where all digits lie, then what they are: so the waits for memory overlap.
#pragma GCC unroll 4
    for (std::size_t lane = 0; lane < n_lanes; lane += group) {
      const Uint32x4 even = {entry(lane), entry(lane + 2), entry(lane + 4), entry(lane + 6)};
      const Uint32x4 odd = {entry(lane + 1), entry(lane + 3), entry(lane + 5), entry(lane + 7)};
      const auto low = Uint16x8((even & 0xffffu) | odd << 16);
      const auto high = Uint16x8(even >> 16 | (odd & 0xffff0000u));
      const auto shift = load_vector<Uint16x8>(contexts + i + lane) & std::uint16_t(63);
      const Uint16x8 digits = high & std::uint16_t(31);
      const auto wanted = Int16x8((low >> 10) + shift);
      const auto most = Int16x8{} + std::int16_t(most_raw);
      const auto raw = Uint16x8(wanted < most ? wanted : most);
      const Uint16x8 begin = end - running_sums(digits + raw);
      n_digits.set(lane, digits);
      n_raw.set(lane, raw);
      byte.set(lane, begin >> 3);
      bit.set(lane, begin & std::uint16_t(7));
      next.set(lane, low & std::uint16_t(table_stride - 1));
      leading.set(lane, Uint16x8(Int16x8(high) >> 5) * powers(raw));
      end = __builtin_shufflevector(begin, begin, 7, 7, 7, 7, 7, 7, 7, 7);
    }
    for (Parts* const parts : {&n_digits, &n_raw, &byte, &bit, &next, &leading})
      keep_in_memory(*parts);
#pragma GCC unroll 32
    for (std::size_t lane = 0; lane < n_lanes; ++lane) {
      const std::uint32_t window = load<std::uint32_t>(bytes + byte.of[lane]) >> bit.of[lane];
      const unsigned n_low = n_digits.of[lane];
      states[lane] = next.of[lane] + (window & short_masks[n_low]);
      const std::uint32_t rest = window >> n_low & short_masks[n_raw.of[lane]];
      store<Number>(out + (i + lane) * sizeof(Number), Number(leading.of[lane] + rest));
    }
    bits.skip_unchecked(position % 8 + room - end[0]);
  }
  std::copy_n(states, n_lanes, shared_states);
  shared_bits = bits;
  return i;
}

}  // namespace
DELTAHUB_END
