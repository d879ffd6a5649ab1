// How the words of a frame are divided into blocks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "fm_delta/decode.hpp"
#include "kernels/codec_interface.hpp"

namespace deltahub {

// Either each block holds `rows_per_block` rows and `parts` is 1, or each row is divided into
// `parts` blocks.
struct BlockLayout {
  std::size_t rows, columns, word_bytes, rows_per_block, parts;

  // std::invalid_argument unless each block has a word and the frame has `size` bytes.
  void check(std::size_t size) const {
    require(rows > 0 && columns > 0 && word_bytes > 0 && rows <= size / word_bytes / columns &&
                size == rows * columns * word_bytes,
            "a frame's bytes must be rows x columns words");
    require(rows_per_block > 0 && rows_per_block <= rows &&
                (rows_per_block == 1 || parts == 1) && parts > 0 &&
                parts <= columns && parts - 1 <= (columns - 1) / part_width(),
            "blocks must be whole rows, or parts of one");
  }
  std::size_t n_blocks() const {
    return parts > 1 ? rows * parts : quotient_rounded_up(rows, rows_per_block);
  }
  struct Position {
    std::size_t row;
    BlockShape shape;
    std::size_t begin, size;  // bytes of the decoded frame
  };
  Position position_of(std::size_t index) const {
    Position at{index / parts, {1, columns, 0}, 0, 0};
    if (parts > 1) {
      at.shape.first_column = index % parts * part_width();
      at.shape.columns = std::min(part_width(), columns - at.shape.first_column);
    } else {
      at.row = index * rows_per_block;
      at.shape.rows = std::min(rows_per_block, rows - at.row);
    }
    at.begin = (at.row * columns + at.shape.first_column) * word_bytes;
    at.size = at.shape.rows * at.shape.columns * word_bytes;
    return at;
  }

 private:
  // Avoids number + by - 1, which may overflow.
  static std::size_t quotient_rounded_up(std::size_t number, std::size_t divisor) {
    return number / divisor + (number % divisor != 0);
  }
  std::size_t part_width() const { return quotient_rounded_up(columns, parts); }
};

}  // namespace deltahub
