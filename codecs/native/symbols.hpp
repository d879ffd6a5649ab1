// Symbols: a delta as one of 61 symbols and some raw bits, given the shift of its context.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace deltahub {

// Symbol 0 is the escape: all bits of the delta are raw. Symbol 1 + 2 * cell + negative holds the
// deltas whose one's-complement magnitude, shifted right by the context's shift, lies in the cell:
// cells 0..15 are one value each, from 16 on an octave has two cells.
inline constexpr int n_linear = 16;
inline constexpr int n_octaves = 7;
inline constexpr int n_cells = n_linear + 2 * n_octaves;
inline constexpr int n_symbols = 1 + 2 * n_cells;
inline constexpr unsigned cells_end = unsigned(n_linear) << n_octaves;

constexpr unsigned cell_width_bits(int cell) {
  return cell < n_linear ? 0 : unsigned(cell - n_linear) / 2 + 3;
}
constexpr unsigned cell_start(int cell) {
  if (cell < n_linear) return unsigned(cell);
  return (2u + unsigned(cell - n_linear) % 2) << cell_width_bits(cell);
}

// The symbol (of a positive delta) by shifted magnitude; the last entry is the escape.
inline constexpr std::array<std::uint8_t, cells_end + 1> symbol_by_magnitude = [] {
  std::array<std::uint8_t, cells_end + 1> table{};
  for (int cell = 0; cell < n_cells; ++cell)
    for (unsigned i = 0; i < 1u << cell_width_bits(cell); ++i)
      table[cell_start(cell) + i] = std::uint8_t(1 + 2 * cell);
  table[cells_end] = 0;
  return table;
}();

// magnitude: one's-complement magnitude of the delta, negative: 0 or 1.
template <class W>
inline unsigned symbol_of(W magnitude, unsigned negative, unsigned shift) {
  const auto shifted = std::uint64_t(magnitude) >> shift;
  const unsigned symbol = symbol_by_magnitude[std::min<std::uint64_t>(shifted, cells_end)];
  return symbol + (symbol ? negative : 0);
}

inline unsigned raw_bits_of(int symbol, unsigned shift, int word_bits) {
  return symbol == 0 ? unsigned(word_bits) : shift + cell_width_bits((symbol - 1) / 2);
}

// The least delta of a symbol, modulo 2^64; its raw bits are added to it.
inline std::uint64_t least_delta(int symbol, unsigned shift) {
  if (symbol == 0) return 0;
  const int cell = (symbol - 1) / 2;
  const std::uint64_t start = std::uint64_t(cell_start(cell)) << shift;
  if ((symbol - 1) % 2 == 0) return start;
  return 0 - start - (std::uint64_t(1) << (shift + cell_width_bits(cell)));
}

// Whether a word of that many bits can hold a delta of the symbol at all.
inline bool is_reachable(int symbol, unsigned shift, int word_bits) {
  if (symbol == 0) return true;
  const auto start = std::uint64_t(cell_start((symbol - 1) / 2));
  return std::bit_width(start) + (start ? shift : 0) <= unsigned(word_bits - 1);
}

}  // namespace deltahub
