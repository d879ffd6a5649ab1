// Which words of a frame planning looks at: pieces of its rows, far apart.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace deltahub {

// One in `step` pieces of each row, on diagonals from piece `phase` of row 0 on, so that each row and
// each column is seen as often.
struct SomePieces {
  std::size_t rows, columns;
  std::size_t step, phase;  // phase < step
  std::size_t piece;        // columns of each but the last one of a row
  std::size_t row = 0, first = phase, index = first;

  // To the piece in hand, where its row has ended; false behind the last one.
  bool skip_ended_rows() {
    for (; row < rows && column() >= columns; ++row)
      index = first = (first == 0 ? step : first) - 1;
    return row < rows;
  }
  void advance() { index += step; }
  std::size_t column() const { return index * piece; }
  std::size_t width() const { return std::min(piece, columns - column()); }
  std::size_t begin() const { return row * columns + column(); }
};

// Asks for memory that would be waited for. Never a call: GCC sees that one has no effect, and leaves
// it out.
[[gnu::always_inline]] inline void fetch(const std::uint8_t* begin, std::size_t size) {
  for (std::size_t byte = 0; byte < size; byte += 64) __builtin_prefetch(begin + byte);
  __builtin_prefetch(begin + size - 1);  // of a line that begins within
}

}  // namespace deltahub
