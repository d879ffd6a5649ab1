// Sampling of a frame: the planner looks at short ranges of its rows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace deltahub {

// Iterates over one in `step` ranges of each row, starting with range `phase` of row 0. From row to
// row the first range moves by one, so that rows and columns are sampled evenly.
struct SampledRanges {
  std::size_t rows, columns;
  std::size_t step, phase;  // phase < step
  std::size_t range_columns;  // columns of a range; the last one of a row may have fewer
  std::size_t row = 0, first = phase, index = first;

  // Moves to the next row with a range if the current row has ended; false after the last range.
  bool skip_ended_rows() {
    for (; row < rows && column() >= columns; ++row)
      index = first = (first == 0 ? step : first) - 1;
    return row < rows;
  }
  void advance() { index += step; }
  std::size_t column() const { return index * range_columns; }
  std::size_t width() const { return std::min(range_columns, columns - column()); }
  std::size_t begin() const { return row * columns + column(); }
};

// Prefetches `size` bytes. Must be inlined: GCC removes calls of it, because it finds no side
// effect.
[[gnu::always_inline]] inline void prefetch(const std::uint8_t* begin, std::size_t size) {
  for (std::size_t byte = 0; byte < size; byte += 64) __builtin_prefetch(begin + byte);
  __builtin_prefetch(begin + size - 1);  // the last cache line, if `begin` is not aligned
}

}  // namespace deltahub
