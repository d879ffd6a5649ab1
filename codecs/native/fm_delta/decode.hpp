// The model of an fm_delta frame made ready: what predicts its blocks' words and their contexts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/words.hpp"
#include "coder/sequences.hpp"
#include "fm_delta/model.hpp"
#include "fm_delta/right_factor.hpp"
#include "kernels/kernels.hpp"

namespace deltahub {

inline bool are_scales(const std::vector<std::int16_t>& scales) {
  return std::ranges::all_of(scales,
                             [](int scale) { return scale >= -scale_end && scale < scale_end; });
}

// The rectangle of a frame that a block holds.
struct BlockShape {
  std::size_t rows = 0, columns = 0;
  std::size_t first_column = 0;
};

// What a block says of its rows.
struct RowSides {
  std::vector<std::int16_t> scales, flags;
  std::vector<std::int16_t> left;  // rows x rank, filled up with zeros
};

// What `predict` works in: one for each thread.
template <class Words>
struct Workspace {
  alignas(64) std::uint8_t words[chunk * sizeof(typename Words::Word)];
  // Products of up to four whole rows, or of a piece of one.
  struct Products {
    std::vector<std::int32_t> numbers;
    std::size_t first_row = 0, n_rows = 0;
  };
  Products products[2];
  bool is_sequential = true;  // false: calls skip most of the rows
  bool is_backward = false;   // calls go back: the next one needs the first of these rows, too
};

// A frame's prelude made ready: immutable, shared by all threads.
template <class Words>
class FrameModel {
 public:
  using Word = typename Words::Word;

  // is_read: without it there are no tables to read streams by.
  FrameModel(const Kernels& kernels, Model&& model, bool is_read)
      : kernels_(kernels), model_(std::move(model)) {
    static const std::vector<Entry> symbols = entries_of(n_delta_symbols, delta_symbol);
    if (is_read) tables_.append(model_.tables, model_.table_log, symbols);
    for (std::size_t z = 0; z < max_classes; ++z)
      classes_.set(z, model_.classes[std::min(z, model_.classes.size() - 1)]);
  }

  // The column stream; false where no encoder wrote it.
  bool read_columns(const std::uint8_t* bytes, std::size_t size, std::size_t columns) {
    if (!model_.has_column_stream()) return size == 0;
    Sequences in = sequences(bytes, size);
    if (model_.column_scales)
      column_scales_ = in.read<std::int16_t>(*model_.column_scales, columns);
    if (model_.staircase_bits > 0) {
      stairs_ = in.read<Word>(model_.stairs, std::size_t(1) << model_.staircase_bits);
      for (std::size_t i = 1; i < stairs_.size(); ++i) stairs_[i] += stairs_[i - 1];
    }
    if (model_.rank() > 0) {
      std::vector<std::int16_t> right;
      right.reserve(std::size_t(model_.rank()) * columns);
      for (const Component& component : model_.components) {
        if (!in.is_sound()) return false;
        for (const std::int16_t number : in.read<std::int16_t>(component.right.context, columns))
          right.push_back(std::int16_t(std::uint16_t(number) << component.right.stride));
      }
      set_right(std::move(right), columns);
    }
    return in.is_finished() && are_scales(column_scales_);
  }
  // What the column stream says, where it is known already.
  void set_column_scales(std::vector<std::int16_t> scales) { column_scales_ = std::move(scales); }
  void set_stairs(std::vector<Word> stairs) { stairs_ = std::move(stairs); }
  // right: rank x columns.
  void set_right(std::vector<std::int16_t> right, std::size_t columns) {
    right_ = RightFactor(kernels_, std::move(right), std::size_t(model_.rank()), columns);
  }

  const Model& model() const { return model_; }
  std::size_t filled_rank() const {
    return deltahub::filled_rank(kernels_, std::size_t(model_.rank()));
  }
  Sequences sequences(const std::uint8_t* bytes, std::size_t size) const {
    return Sequences(kernels_, tables_, model_.table_log, bytes, size);
  }

  // The block's own sequences before its elements; false where no encoder wrote them.
  bool read_rows(Sequences& in, std::size_t rows, RowSides& sides) const {
    if (model_.row_scales) sides.scales = in.read<std::int16_t>(*model_.row_scales, rows);
    if (model_.staircase_bits > 0) sides.flags = in.read<std::int16_t>(model_.flags, rows);
    if (model_.rank() > 0) {
      sides.left.resize(rows * filled_rank());
      for (std::size_t k = 0; k < model_.components.size() && in.is_sound(); ++k) {
        const Factor& factor = model_.components[k].left;
        const auto column = in.read<std::int16_t>(factor.context, rows);
        for (std::size_t i = 0; i < rows; ++i)
          sides.left[i * filled_rank() + k] =
              std::int16_t(std::uint16_t(column[i]) << factor.stride);
      }
    }
    return in.is_sound() && are_scales(sides.scales) &&
           std::ranges::all_of(sides.flags, [](int flag) { return flag == 0 || flag == 1; });
  }

  // Contexts (where they are asked for) of n <= chunk elements from `first` on of a block, and what
  // they are predicted to be: the base itself, or words of the workspace, which is one block's.
  const std::uint8_t* predict(const BlockShape& shape, const RowSides& sides, std::size_t first,
                              std::size_t n, const std::uint8_t* base, Context* contexts,
                              Workspace<Words>& space) const {
    const bool is_moved = model_.staircase_bits > 0 || model_.rank() > 0;
    const bool is_rounded = is_moved && model_.stride > 0;
    if (sides.scales.empty() && column_scales_.empty() && !is_moved) {
      if (contexts)
        contexts_kernel()(base, n, model_.offset, nullptr, classes_, last_class(), contexts);
      return base;
    }
    for (std::size_t done = 0; done < n;) {
      const std::size_t row = (first + done) / shape.columns;
      const std::size_t column = (first + done) % shape.columns;
      const std::size_t width = std::min(shape.columns - column, n - done);
      const std::size_t at = shape.first_column + column;
      const int scale = sides.scales.empty() ? 0 : sides.scales[row];
      const std::uint8_t* words = base + done * sizeof(Word);
      std::uint8_t* const moved = space.words + done * sizeof(Word);
      if (!sides.flags.empty() && sides.flags[row]) {
        descend(words, width, moved);
        if (is_rounded) round_to_stride<Words>(moved, width, model_.stride);
        const int z = std::clamp(scale, 0, last_class());
        if (contexts) std::fill_n(contexts + done, width, classes_.contexts[z]);
      } else {
        if (model_.rank() > 0) {
          const std::int32_t* product = products(shape, sides, row, column, width, space);
          kernels_.predict[kind_of<Words>](words, product, width, model_.floor, moved);
          words = moved;
        } else if (is_moved) {
          std::memcpy(moved, words, width * sizeof(Word));
          words = moved;
        }
        if (is_rounded) round_to_stride<Words>(moved, width, model_.stride);
        const std::int16_t* columns = column_scales_.empty() ? nullptr : &column_scales_[at];
        if (contexts)
          contexts_kernel()(words, width, scale + model_.offset, columns, classes_, last_class(),
                            contexts + done);
      }
      done += width;
    }
    return is_moved ? space.words : base;
  }

  const Kernels& kernels() const { return kernels_; }
  // out = what these words, as predicted, become.
  void apply(const std::uint8_t* words, const std::uint8_t* deltas, std::size_t n,
             std::uint8_t* out) const {
    if (model_.stride > 0)
      kernels_.apply_strided[kind_of<Words>](words, deltas, n, model_.stride, out);
    else
      kernels_.apply[kind_of<Words>](words, deltas, n, out);
  }

 private:
  Kernels::Contexts contexts_kernel() const { return kernels_.contexts[kind_of<Words>]; }
  int last_class() const { return int(model_.classes.size()) - 1; }

  // The products of one row from `column` on.
  const std::int32_t* products(const BlockShape& shape, const RowSides& sides, std::size_t row,
                               std::size_t column, std::size_t width,
                               Workspace<Words>& space) const {
    constexpr std::size_t most_columns = 8 * chunk;
    auto& found = space.products[space.is_backward ? row / 4 % 2 : 0];
    const auto multiply = [&](std::size_t from, std::size_t n_rows, std::size_t left,
                              std::size_t n) {
      found.numbers.resize(std::max(found.numbers.size(), n_rows * n));
      right_.multiply(kernels_, &sides.left[from * filled_rank()], n_rows,
                      shape.first_column + left, n, found.numbers.data());
      if (model_.is_product_rounded)
        kernels_.round(found.numbers.data(), n_rows * n,
                       Words::mantissa_bits + 1 - int(model_.stride));
    };
    if (shape.columns > most_columns || !space.is_sequential) {
      multiply(row, 1, column, width);
      return found.numbers.data();
    }
    if (row < found.first_row || row >= found.first_row + found.n_rows) {
      found.first_row = row / 4 * 4;
      found.n_rows = std::min<std::size_t>(4, shape.rows - found.first_row);
      multiply(found.first_row, found.n_rows, 0, shape.columns);
    }
    return &found.numbers[(row - found.first_row) * shape.columns + column];
  }

  // Words of a row that only decayed: each one moved by what its highest mantissa digits say.
  void descend(const std::uint8_t* words, std::size_t n, std::uint8_t* out) const {
    const int below = Words::mantissa_bits - model_.staircase_bits;
    const std::size_t mask = stairs_.size() - 1;
    for (std::size_t j = 0; j < n; ++j) {
      const Word word = load<Word>(words + j * sizeof(Word));
      const Word stair = stairs_[std::size_t(word >> below) & mask];
      store<Word>(out + j * sizeof(Word), Words::moved(word, stair));
    }
  }

  const Kernels& kernels_;
  Model model_;
  DecodingTables tables_;
  ClassTable classes_;  // filled up with the last one
  std::vector<std::int16_t> column_scales_;
  std::vector<Word> stairs_;
  RightFactor right_;
};

}  // namespace deltahub
