// The block table of a frame: mode, stored length and checksum of each block. See
// codecs/spec/frame.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "frames/block_layout.hpp"
#include "kernels/codec_interface.hpp"

namespace deltahub {

// The same values as in codecs/deltahub/codecs/protocol.py.
enum class BlockMode : std::uint8_t { unchanged = 0, raw = 1, coded = 2 };

struct BlockTable {
  static constexpr std::size_t row_bytes = 16;

  // Parses the rows of a table. std::invalid_argument if no encoder writes such rows for a frame of
  // this layout whose blocks take `stored_bytes` bytes.
  BlockTable(View rows, const BlockLayout& layout, bool has_base, std::uint64_t stored_bytes)
      : layout(layout) {
    layout.check(layout.rows * layout.columns *
                 layout.word_bytes);  // refuses a product that overflows
    const std::size_t n = layout.n_blocks();
    require(rows.size() % row_bytes == 0 && rows.size() / row_bytes == n,
            "a row of the block table for each block");
    for (auto* numbers : {&lengths, &sizes, &ends}) numbers->reserve(n);
    modes.reserve(n);
    checksums.reserve(n);
    std::size_t end = 0;
    for (const std::uint8_t* row = rows.data(); modes.size() < n; row += row_bytes) {
      require((load<std::uint32_t>(row + 4) >> 8) == 0,
              "unused bytes of the block table are not zero");
      lengths.push_back(load<std::uint32_t>(row));
      modes.push_back(row[4]);
      checksums.push_back(load<std::uint64_t>(row + 8));
      sizes.push_back(layout.position_of(sizes.size()).size);
      ends.push_back(end += lengths.back());
    }
    require(end == stored_bytes, "the blocks' lengths do not sum to the body's");
    for (std::size_t i = 0; i < n; ++i)
      if (!is_valid(i, has_base))
        throw std::invalid_argument("a block of mode " + std::to_string(modes[i]) + " with " +
                                    std::to_string(lengths[i]) + " stored bytes");
  }

  std::size_t n_blocks() const { return modes.size(); }
  std::size_t stored_begin(std::size_t i) const { return ends[i] - lengths[i]; }

  BlockLayout layout;
  std::vector<std::uint8_t> modes;
  std::vector<std::size_t> lengths;      // of stored bytes
  std::vector<std::size_t> sizes;        // of decoded bytes
  std::vector<std::size_t> ends;         // where each block ends in the stored bytes
  std::vector<std::uint64_t> checksums;  // of decoded bytes

 private:
  bool is_valid(std::size_t i, bool has_base) const {
    switch (BlockMode(modes[i])) {
      case BlockMode::unchanged: return lengths[i] == 0 && has_base;
      case BlockMode::raw: return lengths[i] == sizes[i];
      case BlockMode::coded: return lengths[i] > 0 && lengths[i] < sizes[i];
    }
    return false;
  }
};

}  // namespace deltahub
