// Decodes eight lanes at a time by 16-byte vectors, except for the loads of table entries and the
// reads of bits, which are done value by value.
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

// How many bits must be unread for a round.
template <class Value>
inline constexpr std::size_t min_unread_bits = max_round_bits<Value>;

// low_masks_32[n]: the n lowest bits set.
constexpr auto low_masks_32 = [] {
  std::array<std::uint32_t, 16> masks{};
  for (unsigned n = 0; n < 16; ++n) masks[n] = (1u << n) - 1;
  return masks;
}();

// One field for each lane of a round, written as vectors and read value by value.
struct alignas(16) LaneFields {
  std::uint16_t of_lane[n_lanes];

  void set(std::size_t lane, Uint16x8 vector) { store_vector(of_lane + lane, vector); }
};

// 2^n for eight n below 16.
inline Uint16x8 powers(Uint16x8 n) {
  const auto both = Uint32x4(n);
  const auto power = [](Uint32x4 exponent) {  // exponent: of a float
    return Uint32x4(__builtin_convertvector(Float32x4(exponent + (127u << 23)), Int32x4));
  };
  return Uint16x8(power(both << 23) | power((both & 0xffff0000u) << 7) << 16);
}

// For each of eight elements the sum of the elements up to and including it.
inline Uint16x8 running_sums(Uint16x8 counts) {
  const Uint16x8 none = {};
  counts += __builtin_shufflevector(none, counts, 7, 8, 9, 10, 11, 12, 13, 14);
  counts += __builtin_shufflevector(none, counts, 6, 7, 8, 9, 10, 11, 12, 13);
  return counts + __builtin_shufflevector(none, counts, 4, 5, 6, 7, 8, 9, 10, 11);
}

// Decodes rounds of 32 values of at most 16 bits while enough bits are unread; returns the index
// of the next value.
template <class Value>
std::size_t decode_rounds(const Entry* entries, BackwardBits& shared_bits,
                          std::uint32_t* shared_states, const std::uint16_t* contexts,
                          std::uint8_t* out, std::size_t i, std::size_t n,
                          PrefetchTargets targets) {
  static_assert(sizeof(Value) <= 2);
  constexpr std::size_t window_bits = min_unread_bits<Value>, group = 8;
  constexpr std::uint16_t max_raw = 8 * sizeof(Value) - 1;
  BackwardBits bits = shared_bits;
  std::uint32_t states[n_lanes];
  std::copy_n(shared_states, n_lanes, states);
  for (; i + n_lanes <= n && bits.has_unread(window_bits); i += n_lanes) {
    prefetch_round<Value>(targets, i);
    const std::size_t position = bits.position();
    const std::uint8_t* const bytes = bits.bytes() + position / 8 - window_bits / 8;
    LaneFields table, n_state_bits, n_raw, byte, bit, next, leading;
#pragma GCC unroll 4
    for (std::size_t lane = 0; lane < n_lanes; lane += group)
      table.set(lane, load_vector<Uint16x8>(contexts + i + lane) & context_table_bits);
    keep_in_memory(table);
    const auto entry = [&](std::size_t lane) {
      return entries[table.of_lane[lane] + states[lane]];
    };
    Uint16x8 end =
        Uint16x8{} + std::uint16_t(position % 8 + window_bits);  // in bits from `bytes` on
    // First all positions, then all bits, so that cache misses overlap.
#pragma GCC unroll 4
    for (std::size_t lane = 0; lane < n_lanes; lane += group) {
      const Uint32x4 even = {entry(lane), entry(lane + 2), entry(lane + 4), entry(lane + 6)};
      const Uint32x4 odd = {entry(lane + 1), entry(lane + 3), entry(lane + 5), entry(lane + 7)};
      const auto low = Uint16x8((even & 0xffffu) | odd << 16);
      const auto high = Uint16x8(even >> 16 | (odd & 0xffff0000u));
      const auto shift = load_vector<Uint16x8>(contexts + i + lane) & std::uint16_t(63);
      const Uint16x8 state_bits = high & std::uint16_t(31);
      const auto wanted = Int16x8((low >> 10) + shift);
      const auto limit = Int16x8{} + std::int16_t(max_raw);
      const auto raw = Uint16x8(wanted < limit ? wanted : limit);
      const Uint16x8 begin = end - running_sums(state_bits + raw);
      n_state_bits.set(lane, state_bits);
      n_raw.set(lane, raw);
      byte.set(lane, begin >> 3);
      bit.set(lane, begin & std::uint16_t(7));
      next.set(lane, low & std::uint16_t(table_stride - 1));
      leading.set(lane, Uint16x8(Int16x8(high) >> 5) * powers(raw));
      end = __builtin_shufflevector(begin, begin, 7, 7, 7, 7, 7, 7, 7, 7);
    }
    for (LaneFields* const fields : {&n_state_bits, &n_raw, &byte, &bit, &next, &leading})
      keep_in_memory(*fields);
#pragma GCC unroll 32
    for (std::size_t lane = 0; lane < n_lanes; ++lane) {
      const std::uint32_t window =
          load<std::uint32_t>(bytes + byte.of_lane[lane]) >> bit.of_lane[lane];
      const unsigned n_low = n_state_bits.of_lane[lane];
      states[lane] = next.of_lane[lane] + (window & low_masks_32[n_low]);
      const std::uint32_t raw_part = window >> n_low & low_masks_32[n_raw.of_lane[lane]];
      store<Value>(out + (i + lane) * sizeof(Value), Value(leading.of_lane[lane] + raw_part));
    }
    bits.skip_unchecked(position % 8 + window_bits - end[0]);
  }
  std::copy_n(states, n_lanes, shared_states);
  shared_bits = bits;
  return i;
}

}  // namespace
DELTAHUB_END
