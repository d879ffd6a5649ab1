// Fuzzer of block tables: BlockTable must accept the same tables as the rules in this file, which
// use sums that cannot overflow, and must give the same position for each block.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <stdexcept>
#include <vector>

#include "frames/block_table.hpp"
#include "frames/decode_blocks.hpp"
#include "fuzz/input.hpp"

namespace deltahub {
namespace {

__extension__ using Wide = unsigned __int128;
constexpr Wide size_end = Wide(1) << 64;
constexpr std::size_t most_blocks_of_table = 64;

// The arguments of BlockTable.
struct ClaimedTable {
  BlockLayout layout;
  bool has_base;
  std::uint64_t stored_bytes;
  Bytes rows;
};

// A block as the rules in this file read it.
struct ExpectedBlock {
  std::uint8_t mode;
  std::size_t length, size, end;
  std::uint64_t checksum;
};

Wide quotient_rounded_up(Wide number, Wide divisor) { return (number + divisor - 1) / divisor; }

// Nothing if no encoder writes such a layout.
std::optional<Wide> n_blocks_of(const BlockLayout& layout) {
  const std::array<Wide, 5> all{layout.rows, layout.columns, layout.word_bytes,
                                layout.rows_per_block, layout.parts};
  const auto [rows, columns, word_bytes, rows_per_block, parts] = all;
  if (std::ranges::count(all, Wide(0)) > 0) return {};
  if (rows * columns >= size_end || rows * columns * word_bytes >= size_end) return {};
  if (rows_per_block > rows || (rows_per_block > 1 && parts > 1)) return {};
  if ((parts - 1) * quotient_rounded_up(columns, parts) >= columns)
    return {};  // the last one is empty
  return parts > 1 ? rows * parts : quotient_rounded_up(rows, rows_per_block);
}

// The size of a block in bytes, in a layout that an encoder writes.
Wide size_of_block(const BlockLayout& layout, Wide index) {
  if (layout.parts == 1) {
    const Wide rows =
        std::min<Wide>(layout.rows_per_block, layout.rows - index * layout.rows_per_block);
    return rows * layout.columns * layout.word_bytes;
  }
  const Wide width = quotient_rounded_up(layout.columns, layout.parts);
  return std::min<Wide>(width, layout.columns - index % layout.parts * width) * layout.word_bytes;
}

bool is_written(const ExpectedBlock& block, bool has_base) {
  switch (block.mode) {
    case 0: return has_base && block.length == 0;
    case 1: return block.length == block.size;
    case 2: return block.length > 0 && block.length < block.size;
    default: return false;
  }
}

// Nothing if no encoder writes such a table.
std::optional<std::vector<ExpectedBlock>> blocks_of(const ClaimedTable& claimed) {
  const auto n_blocks = n_blocks_of(claimed.layout);
  if (!n_blocks || *n_blocks * 16 != claimed.rows.size()) return {};
  std::vector<ExpectedBlock> blocks;
  Wide end = 0;
  for (const std::uint8_t* row = claimed.rows.data(); blocks.size() < *n_blocks; row += 16) {
    const auto length = load<std::uint32_t>(row);
    end += length;
    blocks.push_back({row[4], length, std::size_t(size_of_block(claimed.layout, blocks.size())),
                      std::size_t(end), load<std::uint64_t>(row + 8)});
    if (row[5] != 0 || row[6] != 0 || row[7] != 0 || !is_written(blocks.back(), claimed.has_base))
      return {};
  }
  if (end != claimed.stored_bytes) return {};
  return blocks;
}

// A valid layout of few blocks, which may be large.
BlockLayout make_layout(Input& in) {
  const bool are_parts = in.number(2) == 1;
  BlockLayout layout{in.number(8) + 1, (in.number(65536) + 1) << in.number(20),
                     std::size_t(1) << in.number(4), 1, 1};
  const std::size_t most = in.number(8) + 1, shift = in.number(20);
  if (are_parts) {
    const std::size_t width = layout.columns / most + (layout.columns % most > 0);
    layout.parts = std::size_t(quotient_rounded_up(layout.columns, width));
  } else {
    layout.rows =
        (layout.rows << shift) - in.number(std::min<std::size_t>(layout.rows << shift, 65536));
    layout.rows_per_block = std::min(layout.rows, layout.rows / most + 1);
  }
  return layout;
}

// A table for a layout, as an encoder writes it, except that some modes do not exist. If no encoder
// writes such a layout, or if it has too many blocks, all rows are without stored bytes.
ClaimedTable make_table(const BlockLayout& layout, Input& in) {
  ClaimedTable claimed{layout, in.number(2) == 1, 0, {}};
  const auto n_expected = n_blocks_of(layout);
  const bool is_whole = n_expected && *n_expected <= most_blocks_of_table;
  const std::size_t n_blocks =
      layout.rows_per_block == 0 ? 0 : std::min(layout.n_blocks(), most_blocks_of_table);
  claimed.rows.resize(16 * n_blocks);
  for (std::size_t i = 0; i < n_blocks; ++i) {
    const auto size = is_whole ? std::size_t(size_of_block(layout, i)) : 0;
    const std::size_t mode = in.number(16), length = in.number(65536) << in.number(17);
    const bool is_small = size <= std::numeric_limits<std::uint32_t>::max();
    ExpectedBlock block{2, length, size, 0, in.number(65536)};
    if (size > 1) block.length = std::clamp<std::size_t>(length, 1, size - 1);
    if ((mode % 4 == 1 && is_small) || size <= 1) block.mode = 1, block.length = size;
    if ((mode % 4 == 0 || !is_whole) && claimed.has_base) block.mode = 0, block.length = 0;
    if (mode == 15) block.mode = 3;
    std::uint8_t* const row = claimed.rows.data() + 16 * i;
    store(row, std::uint32_t(block.length));
    row[4] = block.mode;
    store(row + 8, block.checksum << 48 | block.checksum);
    claimed.stored_bytes += block.length;
  }
  return claimed;
}

// These two make one argument wrong, as the input says. The layout is changed first, and the table
// is made for the changed layout.
void corrupt(BlockLayout& layout, Input& in) {
  const std::size_t choice = in.number(4), place = in.number(5);
  const std::size_t value = in.number(65536), amount = value << in.number(64);
  std::size_t& number = *std::array{&layout.rows, &layout.columns, &layout.word_bytes,
                                    &layout.rows_per_block, &layout.parts}[place];
  if (choice == 1) number = amount;
  if (choice == 2) number = 0 - amount;
  if (choice == 3) number += amount;
}
void corrupt(ClaimedTable& claimed, Input& in) {
  const std::size_t choice = in.number(8), place = in.number(65536);
  const std::size_t value = in.number(65536), amount = value << in.number(64);
  switch (choice) {
    case 1:
      claimed.stored_bytes += amount;
      break;
    case 2:
      claimed.stored_bytes -= amount;
      break;
    case 3:
      claimed.rows.resize(16 * (value % most_blocks_of_table));
      break;
    case 4:
      claimed.rows.resize(value % 1024);
      break;
    case 5:
      if (!claimed.rows.empty()) claimed.rows[place % claimed.rows.size()] = std::uint8_t(value);
      break;
    case 6:
      claimed.has_base = !claimed.has_base;
      break;
    case 7:
      if (!claimed.rows.empty())
        claimed.rows[place * 16 % claimed.rows.size() + 4] = std::uint8_t(value % 4);
      break;
    default: break;
  }
}

// BlockRange must accept buffers of exactly the size of blocks [first, end).
void check_range(const BlockTable& table, bool has_base, std::size_t first, std::size_t end) {
  const auto is_accepted = [](auto&& act) {
    try {
      act();
      return true;
    } catch (const std::invalid_argument&) {
      return false;
    }
  };
  const bool exist = first < end && end <= table.n_blocks();
  std::optional<BlockRange> range;
  if (is_accepted([&] { range = BlockRange::of(table, first, end, 1); }) != exist)
    fail("a range of blocks is accepted that the table lacks, or refused that it has");
  if (!exist) return;
  std::size_t size = 0;
  for (std::size_t i = first; i < end; ++i) size += table.sizes[i];
  const std::size_t length = table.ends[end - 1] - table.stored_begin(first);
  const auto fits = [&](std::size_t n_payload, std::size_t n_out) {
    return is_accepted([&] { range->check(n_payload, has_base ? n_out : 0, n_out); });
  };
  if (!fits(length, size)) fail("blocks of a table do not fit their own sizes");
  if (fits(length + 1, size) || fits(length - 1, size) || fits(length, size + 1) ||
      fits(length, size - 1))
    fail("blocks of a table fit other sizes");
}

void check_blocks(const BlockTable& table, const std::vector<ExpectedBlock>& blocks,
                  const BlockLayout& layout) {
  if (table.n_blocks() != blocks.size()) fail("a table with another number of blocks");
  Wide begin = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const ExpectedBlock& block = blocks[i];
    if (table.modes[i] != block.mode || table.lengths[i] != block.length ||
        table.sizes[i] != block.size || table.ends[i] != block.end ||
        table.checksums[i] != block.checksum ||
        table.stored_begin(i) != block.end - block.length)
      fail("a block differs from its row of the table");
    const BlockLayout::Position at = layout.position_of(i);
    if (at.begin != begin || at.size != block.size ||
        (Wide(at.row) * layout.columns + at.shape.first_column) * layout.word_bytes != begin ||
        Wide(at.shape.rows) * at.shape.columns * layout.word_bytes != block.size)
      fail("a block does not begin where the one before ends");
    begin += at.size;
  }
  if (begin != Wide(layout.rows) * layout.columns * layout.word_bytes)
    fail("the blocks are not the whole frame");
}

[[maybe_unused]] void tables(View bytes) {
  Input in(bytes);
  const std::size_t first = in.number(most_blocks_of_table), n = in.number(most_blocks_of_table);
  Input corruption(in.bytes(32));
  BlockLayout layout = make_layout(in);
  for (int i = 0; i < 3; ++i) corrupt(layout, corruption);
  ClaimedTable claimed = make_table(layout, in);
  corrupt(claimed, corruption);
  const auto blocks = blocks_of(claimed);
  const Exact rows(claimed.rows);
  std::optional<BlockTable> table;
  try {
    table.emplace(rows.view(), claimed.layout, claimed.has_base, claimed.stored_bytes);
  } catch (const std::invalid_argument&) {
  }
  if (table.has_value() != blocks.has_value())
    fail(table ? "an invalid table is accepted" : "a valid table is refused");
  if (!table) return;
  check_blocks(*table, *blocks, claimed.layout);
  const std::size_t end = table->n_blocks();
  check_range(*table, claimed.has_base, 0, end);
  for (std::size_t i = 0; i < end; ++i) check_range(*table, claimed.has_base, i, i + 1);
  check_range(*table, claimed.has_base, first, first + n);
  check_range(*table, claimed.has_base, end, end + 1);
  check_range(*table, claimed.has_base, std::size_t(0) - first - 1, n);
}

}  // namespace
}  // namespace deltahub
