// What a kernel sees of a table: one entry a state. And of a context: its table and its shift.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/ans/alphabet.hpp"

DELTAHUB_BEGIN

inline constexpr int min_table_log = 7;
// With 15 raw digits, a number of 16 bits takes at most 25.
inline constexpr int max_table_log = 10;
inline constexpr int max_tables = 16;
inline constexpr std::size_t n_lanes = 32;
// Of one number of each lane.
template <class Number>
inline constexpr std::size_t most_round_digits =
    n_lanes * (max_table_log + 8 * sizeof(Number) - 1);

// Tables lie so many entries apart, however many they have: a state then lies in the low bits of an
// index, and a table above it.
inline constexpr std::size_t table_stride = std::size_t(1) << max_table_log;

// Before the first table and behind the last one there are so many entries of none: a kernel that
// looks one up may load its neighbours, too. The same of short rows, and of next states.
inline constexpr std::size_t entries_beside = 3, next_states_beside = 8;

// One state of a table as it decodes: next state 10 bits, width 6, digits 5, mant 11 (signed). The
// next state comes first, so that vectors take the low half for it as it is: what lies above a state
// is left out when the next entry is looked up.
using Entry = std::uint32_t;
constexpr Entry entry_of(unsigned digits, Symbol symbol, unsigned next_state) {
  return next_state | Entry(symbol.width) << 10 | digits << 16 | Entry(symbol.mant) << 21;
}
constexpr unsigned entry_next(Entry entry) { return entry & (table_stride - 1); }
constexpr unsigned entry_width(Entry entry) { return entry >> 10 & 63; }
constexpr unsigned entry_digits(Entry entry) { return entry >> 16 & 31; }
constexpr std::int32_t entry_mant(Entry entry) { return std::int32_t(entry) >> 21; }

// A row of encoding in 32 bits, where the numbers have at most 16: what is added to a state, with the
// digits to write from bit 12 on, 16 bits; width 4, of which 15 stands for all digits but the sign;
// whether it is missing 1; `first` without the begin of its table 11 (signed).
constexpr std::uint32_t short_row(unsigned most_digits, unsigned frequency, int first,
                                  unsigned width, bool is_missing) {
  const unsigned add = (most_digits << 12) - (frequency << most_digits);
  return (add & 0xffff) | std::min(width, 15u) << 16 | std::uint32_t(is_missing) << 20 |
         std::uint32_t(first) << 21;
}
inline constexpr std::uint16_t short_row_width = 15, short_row_is_missing = 16;  // of its high half
inline constexpr int short_row_first = 5;  // the lowest bit of it

// A context as kernels see it, in 16 bits: where its table begins, and its shift.
using Context = std::uint16_t;
inline constexpr Context context_table_bits = Context(-table_stride);
constexpr Context context_of(unsigned table, unsigned shift) {
  return Context(table * table_stride | shift);
}
constexpr unsigned context_table(Context context) { return context / table_stride; }
constexpr unsigned context_shift(Context context) { return context & 63; }

DELTAHUB_END
