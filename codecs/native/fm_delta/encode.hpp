// Encoding of the column stream and the blocks of fm_delta. A tANS encoder works from the last
// number to the first, so that everything here is written in the reverse order of decoding.
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

// The encoding tables of a model. Immutable; threads share them.
class DeltaEncodingTables {
 public:
  DeltaEncodingTables(const Kernels& kernels, const std::vector<Frequencies>& tables, int table_log)
      : kernels_(kernels), table_log_(table_log) {
    for (const Frequencies& table : tables)
      tables_.append_rows(
          table, table_log, rows_per_table, [](unsigned row) { return symbol_of_row(row); },
          delta_symbol);
  }
  int table_log() const { return table_log_; }
  const Kernels& kernels() const { return kernels_; }

  template <class Number>
  void find_row_indices(const Context* contexts, const Number* numbers, std::size_t n,
                   std::uint16_t* row_indices) const {
    kernel_for<Number>(kernels_.row_indices)(
        reinterpret_cast<const std::uint8_t*>(numbers), contexts, n, row_indices);
  }
  EncodingTablesView tables() const { return tables_.tables(); }

 private:
  const Kernels& kernels_;
  int table_log_;
  EncodingTables tables_;
};

// Side information of the columns, which the column stream stores.
template <class Words>
struct ColumnSideInfo {
  std::vector<std::int16_t> scales;
  std::vector<typename Words::Word> decay_steps;  // by the highest mantissa bits of a word
  std::vector<std::int16_t> right;  // rank x columns
};

template <class Words>
std::vector<std::uint8_t> encode_columns(const Model& model, const DeltaEncodingTables& tables,
                                         const ColumnSideInfo<Words>& side_info,
                                         std::size_t columns) {
  if (!model.has_column_stream()) return {};
  std::vector<std::uint8_t> out(
      stream_bound(columns * std::size_t(1 + model.rank()) + side_info.decay_steps.size(),
                   Words::word_bits + 16));
  StreamWriter<DeltaEncodingTables> writer(tables.kernels(), tables, out.data());
  using Unsigned = std::uint16_t;
  std::vector<Unsigned> row(columns);
  for (std::size_t k = model.components.size(); k-- > 0;) {
    const Factor& factor = model.components[k].right;
    for (std::size_t j = 0; j < columns; ++j)
      row[j] = Unsigned(side_info.right[k * columns + j] >> factor.stride);
    writer.write(factor.context, row.data(), columns);
  }
  if (model.decay_bits > 0) {
    auto rises = side_info.decay_steps;
    for (std::size_t i = rises.size(); i-- > 1;) rises[i] -= rises[i - 1];
    writer.write(model.decay_steps, rises.data(), rises.size());
  }
  if (model.column_scales)
    writer.write(*model.column_scales, reinterpret_cast<const Unsigned*>(side_info.scales.data()),
                 columns);
  out.resize(writer.finish());
  return out;
}

// Encodes one block, which has at least one word. The stream lies in `room` if that is large enough
// for any stream of such a block, or else in a buffer that this thread reuses for its next block.
// Empty if the tables lack the symbol of a number.
template <class Words>
View encode_block(const FrameModel<Words>& frame, const DeltaEncodingTables& tables,
                  const BlockShape& shape, const RowSideInfo& side_info, const std::uint8_t* source,
                  const std::uint8_t* base, std::span<std::uint8_t> room, NextBlock next_block) {
  using Word = typename Words::Word;
  using Unsigned = std::uint16_t;
  const std::size_t count = shape.rows * shape.columns;
  const Model& model = frame.model();
  const std::size_t n_side_values = shape.rows * std::size_t(2 + model.rank());
  const std::size_t bound = stream_bound(count, Words::word_bits) + stream_bound(n_side_values, 16);
  std::uint8_t* const out = room.size() >= bound ? room.data() : stream_buffer().of(bound);
  StreamWriter<DeltaEncodingTables> writer(tables.kernels(), tables, out);
  Workspace<Words> space;
  space.is_backward = true;
  Context contexts[chunk];
  Word deltas[chunk];
  for (std::size_t end = count; end > 0;) {
    const std::size_t first = (end - 1) / chunk * chunk, n = end - first;
    const std::uint8_t* words =
        frame.predict(shape, side_info, first, n, base + first * sizeof(Word), contexts, space);
    tables.kernels().deltas[kind_of<Words>](source + first * sizeof(Word), words, n,
                                            reinterpret_cast<std::uint8_t*>(deltas));
    if (model.stride > 0) divide_by_stride<Words>(deltas, n, model.stride);
    next_block.prefetch_share(first, end, count);
    // Hardware prefetchers do not follow this order: forwards in a chunk, and backwards from chunk
    // to chunk.
    const std::size_t next = (first > 0 ? first - chunk : 0) * sizeof(Word);
    writer.write_chunk(contexts, deltas, n,
                      {std::uintptr_t(source) + next, std::uintptr_t(base) + next});
    end = first;
  }
  std::vector<Unsigned> column(shape.rows);
  for (std::size_t k = model.components.size(); k-- > 0;) {
    const Factor& factor = model.components[k].left;
    for (std::size_t i = 0; i < shape.rows; ++i)
      column[i] = Unsigned(side_info.left[i * frame.padded_rank() + k] >> factor.stride);
    writer.write(factor.context, column.data(), shape.rows);
  }
  if (model.decay_bits > 0)
    writer.write(model.flags, reinterpret_cast<const Unsigned*>(side_info.flags.data()),
                 shape.rows);
  if (model.row_scales)
    writer.write(*model.row_scales, reinterpret_cast<const Unsigned*>(side_info.scales.data()),
                 shape.rows);
  return {out, writer.finish()};
}

}  // namespace deltahub
