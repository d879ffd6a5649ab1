// Encoding of fm_delta's column stream and blocks: the mirror of decoding, backwards.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/prefetch_block.hpp"
#include "coder/stream_writer.hpp"
#include "coder/tables.hpp"
#include "fm_delta/decode.hpp"
#include "kernels/codec_interface.hpp"

namespace deltahub {

// Tables made ready for differences: immutable, shared by all threads.
class DeltaRows {
 public:
  DeltaRows(const Kernels& kernels, const std::vector<Frequencies>& tables, int table_log)
      : kernels_(kernels), table_log_(table_log) {
    for (const Frequencies& table : tables)
      rows_.append_rows(
          table, table_log, rows_per_table, [](unsigned row) { return symbol_of_row(row); },
          delta_symbol);
  }
  int table_log() const { return table_log_; }
  const Kernels& kernels() const { return kernels_; }

  template <class Number>
  void find_row_indices(const Context* contexts, const Number* numbers, std::size_t n,
                        std::uint16_t* row_indices) const {
    kernel_for<Number>(kernels_.row_indices)(reinterpret_cast<const std::uint8_t*>(numbers),
                                             contexts, n, row_indices);
  }
  EncodingTablesView tables() const { return rows_.tables(); }

 private:
  const Kernels& kernels_;
  int table_log_;
  EncodingTables rows_;
};

// What the column stream holds.
template <class Words>
struct ColumnSides {
  std::vector<std::int16_t> scales;
  std::vector<typename Words::Word> stairs;
  std::vector<std::int16_t> right;  // rank x columns
};

template <class Words>
std::vector<std::uint8_t> encode_columns(const Model& model, const DeltaRows& rows,
                                         const ColumnSides<Words>& sides, std::size_t columns) {
  if (!model.has_column_stream()) return {};
  std::vector<std::uint8_t> out(stream_bound(
      columns * std::size_t(1 + model.rank()) + sides.stairs.size(), Words::word_bits + 16));
  StreamWriter<DeltaRows> writer(rows.kernels(), rows, out.data());
  using Unsigned = std::uint16_t;
  std::vector<Unsigned> row(columns);
  for (std::size_t k = model.components.size(); k-- > 0;) {
    const Factor& factor = model.components[k].right;
    for (std::size_t j = 0; j < columns; ++j)
      row[j] = Unsigned(sides.right[k * columns + j] >> factor.stride);
    writer.write(factor.context, row.data(), columns);
  }
  if (model.staircase_bits > 0) {
    auto steps = sides.stairs;
    for (std::size_t i = steps.size(); i-- > 1;) steps[i] -= steps[i - 1];
    writer.write(model.stairs, steps.data(), steps.size());
  }
  if (model.column_scales)
    writer.write(*model.column_scales, reinterpret_cast<const Unsigned*>(sides.scales.data()),
                 columns);
  out.resize(writer.finish());
  return out;
}

// The stream of one block, which has at least one element: in `room`, where that is sure to take it,
// or else in what this thread has for its next one. Empty where the tables lack a number.
template <class Words>
View encode_block(const FrameModel<Words>& frame, const DeltaRows& rows,
                  const BlockShape& shape, const RowSides& sides, const std::uint8_t* source,
                  const std::uint8_t* base, std::span<std::uint8_t> room, NextBlock next_block) {
  using Word = typename Words::Word;
  using Unsigned = std::uint16_t;
  const std::size_t count = shape.rows * shape.columns;
  const Model& model = frame.model();
  const std::size_t n_sides = shape.rows * std::size_t(2 + model.rank());
  const std::size_t bound = stream_bound(count, Words::word_bits) + stream_bound(n_sides, 16);
  std::uint8_t* const out = room.size() >= bound ? room.data() : stream_buffer().of(bound);
  StreamWriter<DeltaRows> writer(rows.kernels(), rows, out);
  Workspace<Words> space;
  space.is_backward = true;
  Context contexts[chunk];
  Word deltas[chunk];
  for (std::size_t end = count; end > 0;) {
    const std::size_t first = (end - 1) / chunk * chunk, n = end - first;
    const std::uint8_t* words = frame.predict(shape, sides, first, n, base + first * sizeof(Word),
                                              contexts, space);
    rows.kernels().deltas[kind_of<Words>](source + first * sizeof(Word), words, n,
                                          reinterpret_cast<std::uint8_t*>(deltas));
    if (model.stride > 0) divide_by_stride<Words>(deltas, n, model.stride);
    next_block.prefetch_share(first, end, count);
    // Forwards in a chunk and backwards from one to the next: no processor foresees that.
    const std::size_t next = (first > 0 ? first - chunk : 0) * sizeof(Word);
    writer.write_chunk(contexts, deltas, n,
                       {std::uintptr_t(source) + next, std::uintptr_t(base) + next});
    end = first;
  }
  std::vector<Unsigned> column(shape.rows);
  for (std::size_t k = model.components.size(); k-- > 0;) {
    const Factor& factor = model.components[k].left;
    for (std::size_t i = 0; i < shape.rows; ++i)
      column[i] = Unsigned(sides.left[i * frame.filled_rank() + k] >> factor.stride);
    writer.write(factor.context, column.data(), shape.rows);
  }
  if (model.staircase_bits > 0)
    writer.write(model.flags, reinterpret_cast<const Unsigned*>(sides.flags.data()), shape.rows);
  if (model.row_scales)
    writer.write(*model.row_scales, reinterpret_cast<const Unsigned*>(sides.scales.data()),
                 shape.rows);
  return {out, writer.finish()};
}

}  // namespace deltahub
