// Encoding of streams and blocks: the mirror of decoding, from the last number to the first.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "decode.hpp"
#include "stream.hpp"
#include "tables.hpp"

namespace deltahub {

// Tables made ready for differences: immutable, shared by all threads.
class DeltaRows {
 public:
  DeltaRows(const std::vector<Frequencies>& tables, int table_log) : table_log_(table_log) {
    for (const Frequencies& table : tables)
      append_rows(rows_, next_states_, table, table_log, n_places,
                  [](unsigned place) { return symbol_of_place(place); }, delta_symbol);
  }
  int table_log() const { return table_log_; }

  template <class Number>
  const Row& row_of(Context context, std::make_signed_t<Number> number) const {
    const auto negative = std::make_signed_t<Number>(number >> (8 * sizeof(Number) - 1));
    const Number magnitude = Number(number ^ negative);
    const unsigned cell = cell_of(std::uint64_t(magnitude) >> context_shift(context));
    return rows_[context_table(context) * n_places + 2 * cell + unsigned(negative & 1)];
  }
  const std::uint16_t* next_states() const { return next_states_.data(); }

 private:
  int table_log_;
  std::vector<Row> rows_;
  std::vector<std::uint16_t> next_states_;
};

// How large a buffer takes a stream of so many digits' worth of numbers.
inline std::size_t stream_bound(std::size_t n, unsigned number_bits) {
  return (n * (number_bits - 1 + max_table_log) + n_lanes * max_table_log) / 8 + 16;
}

// Writes sequences from the last to the first; `finish` puts the states in front of them.
template <class Rows>
class StreamWriter {
 public:
  StreamWriter(const Rows& rows, std::uint8_t* out) : rows_(rows), bits_(out) {
    std::fill_n(states_, n_lanes, 1u << rows.table_log());
  }

  template <class Number>
  void write(const Context* contexts, const Number* numbers, std::size_t n) {
    using Signed = std::make_signed_t<Number>;
    ForwardBits bits = bits_;
    std::uint32_t missing = 0;
    const std::uint16_t* const next_states = rows_.next_states();
    for (std::size_t i = n; i-- > 0;) {
      std::uint32_t& state = states_[i % n_lanes];
      const Context context = contexts[i];
      const Row& row = rows_.template row_of<Number>(context, Signed(numbers[i]));
      const unsigned raw = raw_digits(row.width, context_shift(context), 8 * sizeof(Number));
      const unsigned digits = (state + row.add_for_digits) >> 16;
      const std::uint64_t low = state & low_masks[digits];
      const std::uint64_t rest = std::uint64_t(numbers[i]) & low_masks[raw];
      missing |= row.is_missing;
      state = next_states[std::int64_t(state >> digits) + row.first];
      if constexpr (sizeof(Number) == 8) {
        const unsigned n_low = std::min(raw, 32u);
        bits.put(low | (rest & low_masks[n_low]) << digits, digits + n_low);
        bits.put(rest >> n_low, raw - n_low);
      } else {
        bits.put(low | rest << digits, digits + raw);
      }
    }
    is_complete_ &= missing == 0;
    bits_ = bits;
  }
  template <class Number>
  void write(Context context, const Number* numbers, std::size_t n) {
    const std::vector<Context> contexts(n, context);
    write(contexts.data(), numbers, n);
  }
  // The stream's size in bytes; zero where the tables lack a number.
  std::size_t finish() {
    for (std::size_t lane = n_lanes; lane-- > 0;)
      bits_.put(states_[lane] - (1u << rows_.table_log()), unsigned(rows_.table_log()));
    const std::size_t size = bits_.finish();
    return is_complete_ ? size : 0;
  }

 private:
  const Rows& rows_;
  ForwardBits bits_;
  std::uint32_t states_[n_lanes];
  bool is_complete_ = true;
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
  StreamWriter<DeltaRows> writer(rows, out.data());
  using Unsigned = std::uint16_t;
  for (std::size_t k = model.components.size(); k-- > 0;)
    writer.write(model.components[k].right,
                 reinterpret_cast<const Unsigned*>(&sides.right[k * columns]), columns);
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

// The stream of one block, which has at least one element. Empty where the tables lack a number.
template <class Words>
std::vector<std::uint8_t> encode_block(const FrameModel<Words>& frame, const DeltaRows& rows,
                                       const BlockShape& shape, const RowSides& sides,
                                       const std::uint8_t* source, const std::uint8_t* base) {
  using Word = typename Words::Word;
  using Unsigned = std::uint16_t;
  const std::size_t count = shape.rows * shape.columns;
  const auto contexts = std::make_unique_for_overwrite<Context[]>(count);
  const auto deltas = std::make_unique_for_overwrite<Word[]>(count);
  Workspace<Words> space;
  for (std::size_t first = 0; first < count; first += chunk) {
    const std::size_t n = std::min(chunk, count - first);
    const std::uint8_t* words = frame.predict(shape, sides, first, n, base + first * sizeof(Word),
                                              &contexts[first], space);
    for (std::size_t j = 0; j < n; ++j)
      deltas[first + j] = Word(Words::delta(load<Word>(source + (first + j) * sizeof(Word)),
                                            load<Word>(words + j * sizeof(Word))));
  }
  const Model& model = frame.model();
  const std::size_t n_sides = shape.rows * std::size_t(2 + model.rank());
  std::vector<std::uint8_t> out(stream_bound(count, Words::word_bits) + stream_bound(n_sides, 16));
  StreamWriter<DeltaRows> writer(rows, out.data());
  writer.write(contexts.get(), deltas.get(), count);
  std::vector<Unsigned> column(shape.rows);
  for (std::size_t k = model.components.size(); k-- > 0;) {
    for (std::size_t i = 0; i < shape.rows; ++i)
      column[i] = Unsigned(sides.left[i * frame.even_rank() + k]);
    writer.write(model.components[k].left, column.data(), shape.rows);
  }
  if (model.staircase_bits > 0)
    writer.write(model.flags, reinterpret_cast<const Unsigned*>(sides.flags.data()), shape.rows);
  if (model.row_scales)
    writer.write(*model.row_scales, reinterpret_cast<const Unsigned*>(sides.scales.data()),
                 shape.rows);
  out.resize(writer.finish());
  return out;
}

}  // namespace deltahub
