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
  DeltaRows(const Kernels& kernels, const std::vector<Frequencies>& tables, int table_log)
      : kernels_(kernels), table_log_(table_log) {
    for (const Frequencies& table : tables)
      append_rows(rows_, next_states_, table, table_log, n_places,
                  [](unsigned place) { return symbol_of_place(place); }, delta_symbol);
  }
  int table_log() const { return table_log_; }

  template <class Number>
  void find_places(const Context* contexts, const Number* numbers, std::size_t n,
                   std::uint16_t* places) const {
    kernels_.places[std::bit_width(sizeof(Number)) - 1](
        reinterpret_cast<const std::uint8_t*>(numbers), contexts, n, places);
  }
  const Row* rows() const { return rows_.data(); }
  const std::uint16_t* next_states() const { return next_states_.data(); }

 private:
  const Kernels& kernels_;
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
    std::uint16_t places[chunk];
    for (std::size_t end = n; end > 0;) {
      const std::size_t first = (end - 1) / chunk * chunk, part = end - first;
      rows_.find_places(contexts + first, numbers + first, part, places);
      write_part(contexts + first, numbers + first, places, part);
      end = first;
    }
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
  // Numbers whose digits one `put` surely takes.
  template <class Number>
  static constexpr std::size_t together = sizeof(Number) <= 2 ? 2 : 1;

  // The first number is of lane 0.
  template <class Number>
  void write_part(const Context* contexts, const Number* numbers, const std::uint16_t* places,
                  std::size_t n) {
    ForwardBits bits = bits_;
    const Row* const rows = rows_.rows();
    const std::uint16_t* const next_states = rows_.next_states();
    std::uint32_t missing = 0;
    std::size_t i = n;
    for (; i % n_lanes != 0; --i)
      missing |= write_numbers<Number, 1>(bits, rows, next_states, &states_[(i - 1) % n_lanes],
                                          contexts + i - 1, numbers + i - 1, places + i - 1);
    std::uint32_t states[n_lanes];
    std::copy_n(states_, n_lanes, states);
    constexpr std::size_t count = together<Number>;
    while (i > 0)
#pragma GCC unroll 16
      for (std::size_t lane = n_lanes; lane > 0;) {
        lane -= count, i -= count;
        missing |= write_numbers<Number, count>(bits, rows, next_states, &states[lane],
                                                contexts + i, numbers + i, places + i);
      }
    std::copy_n(states, n_lanes, states_);
    is_complete_ &= missing == 0;
    bits_ = bits;
  }

  // COUNT numbers side by side, from the last to the first; nonzero where a table lacks one.
  template <class Number, std::size_t COUNT>
  static std::uint32_t write_numbers(ForwardBits& bits, const Row* rows,
                                     const std::uint16_t* next_states, std::uint32_t* states,
                                     const Context* contexts, const Number* numbers,
                                     const std::uint16_t* places) {
    std::uint64_t pending = 0;
    unsigned n_pending = 0;
    std::uint32_t missing = 0;
    for (std::size_t k = COUNT; k-- > 0;) {
      const Row row = rows[places[k]];
      const unsigned raw = raw_digits(row.width, context_shift(contexts[k]), 8 * sizeof(Number));
      const unsigned digits = (states[k] + row.add_for_digits) >> 16;
      const std::uint64_t low = states[k] & low_masks[digits];
      const std::uint64_t rest = std::uint64_t(numbers[k]) & low_masks[raw];
      missing |= row.is_missing;
      states[k] = next_states[std::int64_t(states[k] >> digits) + row.first];
      if constexpr (sizeof(Number) == 8) {
        const unsigned n_low = std::min(raw, 32u);
        bits.put(low | (rest & low_masks[n_low]) << digits, digits + n_low);
        bits.put(rest >> n_low, raw - n_low);
      } else {
        pending |= (low | rest << digits) << n_pending;
        n_pending += digits + raw;
      }
    }
    if constexpr (sizeof(Number) != 8) bits.put(pending, n_pending);
    return missing;
  }

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
