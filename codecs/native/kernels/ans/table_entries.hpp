// The layout of tables for kernels: one entry for each state of a decoding table, packed rows of
// encoding tables, and contexts (a table and a shift).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/ans/alphabet.hpp"

DELTAHUB_BEGIN

inline constexpr int min_table_log = 7;
// With 15 raw bits, a 16-bit value then takes at most 25 bits.
inline constexpr int max_table_log = 10;
inline constexpr int max_tables = 16;
inline constexpr std::size_t n_lanes = 32;
// The most bits that a round takes: one value of each lane.
template <class Value>
inline constexpr std::size_t max_round_bits = n_lanes * (max_table_log + 8 * sizeof(Value) - 1);

// Tables begin so many entries apart, whatever their size: so the low bits of an index are the
// state, and the high bits the table.
inline constexpr std::size_t table_stride = std::size_t(1) << max_table_log;

// Padding entries before the first and after the last table (packed rows: the same number; next
// states: next_state_padding), because kernels load an entry with its neighbours.
inline constexpr std::size_t entry_padding = 3, next_state_padding = 8;

// A decoding entry: next state 10 bits, width 6, state bits 5, mant 11 (signed). The next state is
// lowest, so that vectors use the low half as it is: the bits above a state are masked out at the
// next look-up.
using Entry = std::uint32_t;
constexpr Entry entry_of(unsigned state_bits, Symbol symbol, unsigned next_state) {
  return next_state | Entry(symbol.width) << 10 | state_bits << 16 | Entry(symbol.mant) << 21;
}
constexpr unsigned entry_next(Entry entry) { return entry & (table_stride - 1); }
constexpr unsigned entry_width(Entry entry) { return entry >> 10 & 63; }
constexpr unsigned entry_state_bits(Entry entry) { return entry >> 16 & 31; }
constexpr std::int32_t entry_mant(Entry entry) { return std::int32_t(entry) >> 21; }

// An encoding row in 32 bits, for values of at most 16 bits: what is added to a state 16 bits (the
// number of bits to write is then in bits 12 and up); width 4, where 15 means all bits but the
// sign; is_missing 1; next_offset relative to its table 11 (signed).
constexpr std::uint32_t packed_row(unsigned max_bits, unsigned frequency, int next_offset,
                                   unsigned width, bool is_missing) {
  const unsigned add = (max_bits << 12) - (frequency << max_bits);
  return (add & 0xffff) | std::min(width, 15u) << 16 | std::uint32_t(is_missing) << 20 |
         std::uint32_t(next_offset) << 21;
}
// in the high half
inline constexpr std::uint16_t packed_row_width = 15, packed_row_is_missing = 16;
inline constexpr int packed_row_offset_bit = 5;  // the lowest bit of next_offset in the high half

// A context in 16 bits: the first entry of its table, and its shift.
using Context = std::uint16_t;
inline constexpr Context context_table_bits = Context(-table_stride);
constexpr Context context_of(unsigned table, unsigned shift) {
  return Context(table * table_stride | shift);
}
constexpr unsigned context_table(Context context) { return context / table_stride; }
constexpr unsigned context_shift(Context context) { return context & 63; }

DELTAHUB_END
