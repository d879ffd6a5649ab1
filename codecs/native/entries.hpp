// What a kernel sees of a table: one entry a state. And of a context: its table and its shift.
#pragma once

#include <cstddef>
#include <cstdint>

#include "alphabet.hpp"

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

// One state of a table as it decodes: digits 4 bits, width 6, next state 11, mant 11 (signed).
using Entry = std::uint32_t;
constexpr Entry entry_of(unsigned digits, Symbol symbol, unsigned next_state) {
  return digits | Entry(symbol.width) << 4 | next_state << 10 | Entry(symbol.mant) << 21;
}
constexpr unsigned entry_digits(Entry entry) { return entry & 15; }
constexpr unsigned entry_width(Entry entry) { return entry >> 4 & 63; }
constexpr unsigned entry_next(Entry entry) { return entry >> 10 & 2047; }
constexpr std::int32_t entry_mant(Entry entry) { return std::int32_t(entry) >> 21; }

// A context as kernels see it, in 16 bits: its table and its shift.
using Context = std::uint16_t;
constexpr Context context_of(unsigned table, unsigned shift) {
  return Context(table << 12 | shift);
}
constexpr unsigned context_table(Context context) { return context >> 12; }
constexpr unsigned context_shift(Context context) { return context & 63; }

DELTAHUB_END
