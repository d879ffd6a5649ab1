// The fuzzer of block tables: accepted is what these rules accept, which are told again here by
// sums that cannot wrap; and each block lies where they say.
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

// What a table is read by, and its rows.
struct ToldTable {
  Cut cut;
  bool has_base;
  std::uint64_t stored_bytes;
  Bytes rows;
};

// Of a block, as the table says it.
struct ToldBlock {
  std::uint8_t mode;
  std::size_t length, size, end;
  std::uint64_t checksum;
};

Wide quotient_up(Wide number, Wide by) { return (number + by - 1) / by; }

// None where no encoder writes such a cut.
std::optional<Wide> n_blocks_of(const Cut& cut) {
  const std::array<Wide, 5> all{cut.rows, cut.columns, cut.word_bytes, cut.rows_per_block,
                                cut.parts};
  const auto [rows, columns, word_bytes, rows_per_block, parts] = all;
  if (std::ranges::count(all, Wide(0)) > 0) return {};
  if (rows * columns >= size_end || rows * columns * word_bytes >= size_end) return {};
  if (rows_per_block > rows || (rows_per_block > 1 && parts > 1)) return {};
  if ((parts - 1) * quotient_up(columns, parts) >= columns) return {};  // the last one is empty
  return parts > 1 ? rows * parts : quotient_up(rows, rows_per_block);
}

// In bytes; of a cut as an encoder writes them.
Wide size_of_block(const Cut& cut, Wide index) {
  if (cut.parts == 1) {
    const Wide rows = std::min<Wide>(cut.rows_per_block, cut.rows - index * cut.rows_per_block);
    return rows * cut.columns * cut.word_bytes;
  }
  const Wide width = quotient_up(cut.columns, cut.parts);
  return std::min<Wide>(width, cut.columns - index % cut.parts * width) * cut.word_bytes;
}

bool is_written(const ToldBlock& block, bool has_base) {
  switch (block.mode) {
    case 0: return has_base && block.length == 0;
    case 1: return block.length == block.size;
    case 2: return block.length > 0 && block.length < block.size;
    default: return false;
  }
}

// None where no encoder writes such a table.
std::optional<std::vector<ToldBlock>> blocks_of(const ToldTable& told) {
  const auto n_blocks = n_blocks_of(told.cut);
  if (!n_blocks || *n_blocks * 16 != told.rows.size()) return {};
  std::vector<ToldBlock> blocks;
  Wide end = 0;
  for (const std::uint8_t* row = told.rows.data(); blocks.size() < *n_blocks; row += 16) {
    const auto length = load<std::uint32_t>(row);
    end += length;
    blocks.push_back({row[4], length, std::size_t(size_of_block(told.cut, blocks.size())),
                      std::size_t(end), load<std::uint64_t>(row + 8)});
    if (row[5] != 0 || row[6] != 0 || row[7] != 0 || !is_written(blocks.back(), told.has_base))
      return {};
  }
  if (end != told.stored_bytes) return {};
  return blocks;
}

// A frame of few blocks, which may be large.
Cut some_cut(Input& in) {
  const bool are_parts = in.number(2) == 1;
  Cut cut{in.number(8) + 1, (in.number(65536) + 1) << in.number(20), std::size_t(1) << in.number(4),
          1, 1};
  const std::size_t most = in.number(8) + 1, shift = in.number(20);
  if (are_parts) {
    const std::size_t width = cut.columns / most + (cut.columns % most > 0);
    cut.parts = std::size_t(quotient_up(cut.columns, width));
  } else {
    cut.rows = (cut.rows << shift) - in.number(std::min<std::size_t>(cut.rows << shift, 65536));
    cut.rows_per_block = std::min(cut.rows, cut.rows / most + 1);
  }
  return cut;
}

// Its table as an encoder writes it, but for modes that there are not. Of a cut that no encoder
// writes, or of too many blocks, rows without stored bytes: those of a base's blocks, or of blocks
// without words.
ToldTable some_table(const Cut& cut, Input& in) {
  ToldTable told{cut, in.number(2) == 1, 0, {}};
  const auto made = n_blocks_of(cut);
  const bool is_whole = made && *made <= most_blocks_of_table;
  const std::size_t n_blocks =
      cut.rows_per_block == 0 ? 0 : std::min(cut.n_blocks(), most_blocks_of_table);
  told.rows.resize(16 * n_blocks);
  for (std::size_t i = 0; i < n_blocks; ++i) {
    const auto size = is_whole ? std::size_t(size_of_block(cut, i)) : 0;
    const std::size_t mode = in.number(16), length = in.number(65536) << in.number(17);
    const bool is_small = size <= std::numeric_limits<std::uint32_t>::max();
    ToldBlock block{2, length, size, 0, in.number(65536)};
    if (size > 1) block.length = std::clamp<std::size_t>(length, 1, size - 1);
    if ((mode % 4 == 1 && is_small) || size <= 1) block.mode = 1, block.length = size;
    if ((mode % 4 == 0 || !is_whole) && told.has_base) block.mode = 0, block.length = 0;
    if (mode == 15) block.mode = 3;
    std::uint8_t* const row = told.rows.data() + 16 * i;
    store(row, std::uint32_t(block.length));
    row[4] = block.mode;
    store(row + 8, block.checksum << 48 | block.checksum);
    told.stored_bytes += block.length;
  }
  return told;
}

// What an input may tell that is not so: first of the cut, to which the table then fits.
void lie(Cut& cut, Input& in) {
  const std::size_t what = in.number(4), place = in.number(5);
  const std::size_t by = in.number(65536), amount = by << in.number(64);
  std::size_t& number = *std::array{&cut.rows, &cut.columns, &cut.word_bytes, &cut.rows_per_block,
                                    &cut.parts}[place];
  if (what == 1) number = amount;
  if (what == 2) number = 0 - amount;
  if (what == 3) number += amount;
}
void lie(ToldTable& told, Input& in) {
  const std::size_t what = in.number(8), place = in.number(65536);
  const std::size_t by = in.number(65536), amount = by << in.number(64);
  switch (what) {
    case 1: told.stored_bytes += amount; break;
    case 2: told.stored_bytes -= amount; break;
    case 3: told.rows.resize(16 * (by % most_blocks_of_table)); break;
    case 4: told.rows.resize(by % 1024); break;
    case 5:
      if (!told.rows.empty()) told.rows[place % told.rows.size()] = std::uint8_t(by);
      break;
    case 6: told.has_base = !told.has_base; break;
    case 7:
      if (!told.rows.empty()) told.rows[place * 16 % told.rows.size() + 4] = std::uint8_t(by % 4);
      break;
    default: break;
  }
}

// Blocks [first, end) fit buffers of their sizes, and no others.
void check_run(const BlockTable& table, bool has_base, std::size_t first, std::size_t end) {
  const auto is_accepted = [](auto&& act) {
    try {
      act();
      return true;
    } catch (const std::invalid_argument&) {
      return false;
    }
  };
  const bool are_there = first < end && end <= table.n_blocks();
  std::optional<BlockRun> run;
  if (is_accepted([&] { run = BlockRun::of(table, first, end, 1); }) != are_there)
    fail("blocks of a table that it lacks, or lacks not");
  if (!are_there) return;
  std::size_t size = 0;
  for (std::size_t i = first; i < end; ++i) size += table.sizes[i];
  const std::size_t length = table.ends[end - 1] - table.stored_begin(first);
  const auto fits = [&](std::size_t n_payload, std::size_t n_out) {
    return is_accepted([&] { run->check(n_payload, has_base ? n_out : 0, n_out); });
  };
  if (!fits(length, size)) fail("blocks of a table do not fit their own sizes");
  if (fits(length + 1, size) || fits(length - 1, size) || fits(length, size + 1) ||
      fits(length, size - 1))
    fail("blocks of a table fit other sizes");
}

void check_blocks(const BlockTable& table, const std::vector<ToldBlock>& blocks,
                  const Cut& cut) {
  if (table.n_blocks() != blocks.size()) fail("a table of other blocks");
  Wide begin = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const ToldBlock& block = blocks[i];
    if (table.modes[i] != block.mode || table.lengths[i] != block.length ||
        table.sizes[i] != block.size || table.ends[i] != block.end ||
        table.checksums[i] != block.checksum ||
        table.stored_begin(i) != block.end - block.length)
      fail("a block is not what its row says");
    const Cut::Place at = cut.place_of(i);
    if (at.begin != begin || at.size != block.size ||
        (Wide(at.row) * cut.columns + at.shape.first_column) * cut.word_bytes != begin ||
        Wide(at.shape.rows) * at.shape.columns * cut.word_bytes != block.size)
      fail("a block does not begin where the one before ends");
    begin += at.size;
  }
  if (begin != Wide(cut.rows) * cut.columns * cut.word_bytes)
    fail("the blocks are not the whole frame");
}

[[maybe_unused]] void tables(View bytes) {
  Input in(bytes);
  const std::size_t first = in.number(most_blocks_of_table), n = in.number(most_blocks_of_table);
  Input lies(in.bytes(32));
  Cut cut = some_cut(in);
  for (int i = 0; i < 3; ++i) lie(cut, lies);
  ToldTable told = some_table(cut, in);
  lie(told, lies);
  const auto blocks = blocks_of(told);
  const Exact rows(told.rows);
  std::optional<BlockTable> table;
  try {
    table.emplace(rows.view(), told.cut, told.has_base, told.stored_bytes);
  } catch (const std::invalid_argument&) {
  }
  if (table.has_value() != blocks.has_value())
    fail(table ? "a table is accepted that is none" : "a table is refused that is one");
  if (!table) return;
  check_blocks(*table, *blocks, told.cut);
  const std::size_t end = table->n_blocks();
  check_run(*table, told.has_base, 0, end);
  for (std::size_t i = 0; i < end; ++i) check_run(*table, told.has_base, i, i + 1);
  check_run(*table, told.has_base, first, first + n);
  check_run(*table, told.has_base, end, end + 1);
  check_run(*table, told.has_base, std::size_t(0) - first - 1, n);
}

}  // namespace
}  // namespace deltahub
