// Alphabets: which symbol a value has, and how many of its low bits are raw.
//
// A symbol is (mant, width). With the shift of a context it stands for the values whose bits above
// the lowest min(width + shift, value_bits - 1) are `mant`; the lower bits are raw. Symbols 0 and
// 1 are the escapes, for values from zero on and for values below zero: all bits but the sign are
// raw.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "base/isa.hpp"

DELTAHUB_BEGIN

inline constexpr int n_escapes = 2;
inline constexpr int escape_width = 63;

struct Symbol {
  std::int16_t mant;
  std::uint8_t width;
};

inline unsigned raw_bit_count(unsigned width, unsigned shift, unsigned value_bits) {
  return std::min(width + shift, value_bits - 1);
}

// Deltas: cells 0..15 have one magnitude each; from 16 on an octave has two cells. Symbol 2 + 2 *
// cell + negative stands for the values whose magnitude (one's complement if negative) lies in the
// cell.
inline constexpr int n_linear = 16;
inline constexpr int n_octaves = 12;
inline constexpr int n_cells = n_linear + 2 * n_octaves;
inline constexpr int n_delta_symbols = n_escapes + 2 * n_cells;
inline constexpr std::uint64_t cells_end = std::uint64_t(n_linear) << n_octaves;

constexpr unsigned cell_width(int cell) {
  return cell < n_linear ? 0 : unsigned(cell - n_linear) / 2 + 3;
}
constexpr int cell_mant(int cell) { return cell < n_linear ? cell : 2 + cell % 2; }

constexpr Symbol delta_symbol(int symbol) {
  if (symbol < n_escapes) return {.mant = std::int16_t(-symbol), .width = escape_width};
  const int cell = (symbol - n_escapes) / 2, mant = cell_mant(cell);
  return {.mant = std::int16_t(symbol % 2 ? -mant - 1 : mant),
          .width = std::uint8_t(cell_width(cell))};
}

// Cells by shifted magnitude, in two small tables: one element for each of the low magnitudes, and
// one for each 2^coarse_bits magnitudes, of which the starts of high cells are multiples. Cell
// `n_cells` stands for the escape.
inline constexpr unsigned fine_end = 1u << 10;
inline constexpr unsigned coarse_bits = 6;
inline constexpr auto cell_by_magnitude = [] {
  std::array<std::uint8_t, fine_end + (cells_end >> coarse_bits) + 1> table{};
  const auto start = [](int cell) { return std::uint64_t(cell_mant(cell)) << cell_width(cell); };
  int cell = 0;
  for (unsigned i = 0; i < fine_end; ++i) {
    while (cell + 1 < n_cells && start(cell + 1) <= i) ++cell;
    table[i] = std::uint8_t(cell);
  }
  cell = 0;
  for (unsigned i = 0; i < cells_end >> coarse_bits; ++i) {
    while (cell + 1 < n_cells && start(cell + 1) <= std::uint64_t(i) << coarse_bits) ++cell;
    table[fine_end + i] = std::uint8_t(cell);
  }
  table.back() = std::uint8_t(n_cells);
  return table;
}();

template <class Wide>
constexpr unsigned cell_of(Wide shifted_magnitude) {
  const std::uint64_t coarse =
      fine_end + (std::min<std::uint64_t>(shifted_magnitude, cells_end) >> coarse_bits);
  return cell_by_magnitude[shifted_magnitude < fine_end ? shifted_magnitude : coarse];
}

// The symbol of row 2 * cell + negative of an encoding table. Cell n_cells is the escape.
constexpr int symbol_of_row(unsigned row_in_table) {
  return row_in_table < 2 * n_cells ? int(row_in_table) + n_escapes : int(row_in_table & 1);
}
inline constexpr unsigned rows_per_table = 2 * (n_cells + 1);

// Floats without a base: symbol 2 + the leading bits, which are the exponent and the first
// mantissa bits; the sign and the other mantissa bits are raw. An entry has no room for more
// leading bits.
inline constexpr int max_leading_bits = 11;
constexpr int n_float_symbols(int leading_bits) { return n_escapes + (1 << leading_bits); }

constexpr Symbol float_symbol(int symbol, int leading_bits, int raw_bits) {
  if (symbol < n_escapes) return {.mant = std::int16_t(-symbol), .width = escape_width};
  // Values are modulo 2^bits, so that leading bits which begin with 1 are those of a negative
  // value.
  const int bits = symbol - n_escapes, top = 1 << (leading_bits - 1);
  return {.mant = std::int16_t((bits ^ top) - top), .width = std::uint8_t(raw_bits)};
}

DELTAHUB_END
