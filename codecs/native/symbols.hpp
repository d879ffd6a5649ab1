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
inline constexpr int n_octaves = 12;
inline constexpr int n_cells = n_linear + 2 * n_octaves;
inline constexpr int n_symbols = 1 + 2 * n_cells;
inline constexpr std::uint64_t cells_end = std::uint64_t(n_linear) << n_octaves;

constexpr unsigned cell_width_bits(int cell) {
  return cell < n_linear ? 0 : unsigned(cell - n_linear) / 2 + 3;
}
constexpr std::uint64_t cell_start(int cell) {
  if (cell < n_linear) return unsigned(cell);
  return (2u + unsigned(cell - n_linear) % 2) << cell_width_bits(cell);
}

// Cells by shifted magnitude, in two small tables: the low magnitudes one by one, and all of them
// at a coarser step that cells so high are multiples of. Cell `n_cells` stands for the escape.
inline constexpr unsigned fine_end = 1u << 10;
inline constexpr unsigned coarse_bits = 6;
inline constexpr auto cell_by_magnitude = [] {
  std::array<std::uint8_t, fine_end + (cells_end >> coarse_bits) + 1> table{};
  int cell = 0;
  for (unsigned i = 0; i < fine_end; ++i) {
    while (cell + 1 < n_cells && cell_start(cell + 1) <= i) ++cell;
    table[i] = std::uint8_t(cell);
  }
  cell = 0;
  for (unsigned i = 0; i < cells_end >> coarse_bits; ++i) {
    while (cell + 1 < n_cells && cell_start(cell + 1) <= std::uint64_t(i) << coarse_bits) ++cell;
    table[fine_end + i] = std::uint8_t(cell);
  }
  table.back() = std::uint8_t(n_cells);
  return table;
}();

template <class Wide>
inline unsigned cell_of(Wide shifted_magnitude) {
  const std::uint64_t coarse = fine_end + (std::min<std::uint64_t>(shifted_magnitude, cells_end)
                                           >> coarse_bits);
  return cell_by_magnitude[shifted_magnitude < fine_end ? shifted_magnitude : coarse];
}

// 2 * cell + negative, as a symbol.
inline int symbol_of_place(unsigned place) {
  return place < 2 * n_cells ? int(place) + 1 : 0;
}

inline unsigned raw_bits_of(int symbol, unsigned shift, int word_bits) {
  return symbol == 0 ? unsigned(word_bits) : shift + cell_width_bits((symbol - 1) / 2);
}

// The least delta of a symbol, modulo 2^64; its raw bits are added to it.
inline std::uint64_t least_delta(int symbol, unsigned shift) {
  if (symbol == 0) return 0;
  const int cell = (symbol - 1) / 2;
  const std::uint64_t start = cell_start(cell) << shift;
  if ((symbol - 1) % 2 == 0) return start;
  return 0 - start - (std::uint64_t(1) << (shift + cell_width_bits(cell)));
}

// Whether a word of that many bits can hold a delta of the symbol at all.
inline bool is_reachable(int symbol, unsigned shift, int word_bits) {
  if (symbol == 0) return true;
  const std::uint64_t start = cell_start((symbol - 1) / 2);
  return start == 0 || int(std::bit_width(start)) + int(shift) < word_bits;
}

}  // namespace deltahub
