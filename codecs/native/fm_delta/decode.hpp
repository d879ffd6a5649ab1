// The model of an fm_delta frame, prepared for use: it predicts the words of blocks and their
// contexts. A word is the bit pattern of one element. See codecs/spec/fm_delta.md.
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

// The rectangle of the frame that one block holds. The caller knows its first row.
struct BlockShape {
  std::size_t rows = 0, columns = 0;
  std::size_t first_column = 0;
};

// Side information that a block stores for its rows. A sequence that the model lacks is empty.
struct RowSideInfo {
  std::vector<std::int16_t> scales;
  std::vector<std::int16_t> flags;  // 1: the row moved by weight decay alone
  std::vector<std::int16_t> left;   // left factor: rows x padded rank
};

// Scratch memory of `predict` for one block; threads must not share it.
template <class Words>
struct Workspace {
  alignas(64) std::uint8_t words[chunk * sizeof(typename Words::Word)];
  // Low-rank products of up to four whole rows, or of a part of one row.
  struct Products {
    std::vector<std::int32_t> values;
    std::size_t first_row = 0, n_rows = 0;
  };
  Products products[2];
  // false: calls skip most rows, so that products of whole rows are not worth keeping.
  bool is_sequential = true;
  // Calls go from the last word to the first, so that two groups of four rows are in use at once.
  bool is_backward = false;
};

// A prelude prepared for encoding and decoding. Once set up it is immutable; threads share it.
template <class Words>
class FrameModel {
 public:
  using Word = typename Words::Word;

  // for_decoding: build the decoding tables, too; encoders need none.
  FrameModel(const Kernels& kernels, Model&& model, bool for_decoding)
      : kernels_(kernels), model_(std::move(model)) {
    static const std::vector<Entry> symbols = entries_of(n_delta_symbols, delta_symbol);
    if (for_decoding) tables_.append(model_.tables, model_.table_log, symbols);
    for (std::size_t z = 0; z < max_classes; ++z)
      classes_.set(z, model_.classes[std::min(z, model_.classes.size() - 1)]);
  }

  // Reads the column stream; false if no encoder writes such a stream.
  bool read_columns(const std::uint8_t* bytes, std::size_t size, std::size_t columns) {
    if (!model_.has_column_stream()) return size == 0;
    Sequences in = sequences(bytes, size);
    if (model_.column_scales)
      column_scales_ = in.read<std::int16_t>(*model_.column_scales, columns);
    if (model_.decay_bits > 0) {
      decay_steps_ = in.read<Word>(model_.decay_steps, std::size_t(1) << model_.decay_bits);
      for (std::size_t i = 1; i < decay_steps_.size(); ++i) decay_steps_[i] += decay_steps_[i - 1];
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
  // Encoders and planners set the content of the column stream with these functions.
  void set_column_scales(std::vector<std::int16_t> scales) { column_scales_ = std::move(scales); }
  void set_decay_steps(std::vector<Word> decay_steps) { decay_steps_ = std::move(decay_steps); }
  // right: rank x columns.
  void set_right(std::vector<std::int16_t> right, std::size_t columns) {
    right_ = RightFactor(kernels_, std::move(right), std::size_t(model_.rank()), columns);
  }

  const Model& model() const { return model_; }
  // The decoding tables, table_stride entries apart, and the content of the column stream.
  const Entry* entries() const { return tables_.entries(); }
  const std::vector<std::int16_t>& column_scales() const { return column_scales_; }
  const std::vector<Word>& decay_steps() const { return decay_steps_; }
  const RightFactor& right() const { return right_; }
  std::size_t padded_rank() const {
    return deltahub::padded_rank(kernels_, std::size_t(model_.rank()));
  }
  Sequences sequences(const std::uint8_t* bytes, std::size_t size) const {
    return Sequences(kernels_, tables_, model_.table_log, bytes, size);
  }

  // Reads the side information at the start of a block; false if no encoder writes such numbers.
  bool read_rows(Sequences& in, std::size_t rows, RowSideInfo& side_info) const {
    if (model_.row_scales) side_info.scales = in.read<std::int16_t>(*model_.row_scales, rows);
    if (model_.decay_bits > 0) side_info.flags = in.read<std::int16_t>(model_.flags, rows);
    if (model_.rank() > 0) {
      side_info.left.resize(rows * padded_rank());
      for (std::size_t k = 0; k < model_.components.size() && in.is_sound(); ++k) {
        const Factor& factor = model_.components[k].left;
        const auto column = in.read<std::int16_t>(factor.context, rows);
        for (std::size_t i = 0; i < rows; ++i)
          side_info.left[i * padded_rank() + k] =
              std::int16_t(std::uint16_t(column[i]) << factor.stride);
      }
    }
    return in.is_sound() && are_scales(side_info.scales) &&
           std::ranges::all_of(side_info.flags, [](int flag) { return flag == 0 || flag == 1; });
  }

  // Returns the predictions of words [first, first + n) of a block, n <= chunk: the base itself, or
  // words in `space`. Fills `contexts` with their contexts unless it is null. base: the base of
  // word `first`.
  const std::uint8_t* predict(const BlockShape& shape, const RowSideInfo& side_info,
                              std::size_t first, std::size_t n, const std::uint8_t* base,
                              Context* contexts, Workspace<Words>& space) const {
    const bool has_predictor = model_.decay_bits > 0 || model_.rank() > 0;
    const bool is_rounded = has_predictor && model_.stride > 0;
    if (side_info.scales.empty() && column_scales_.empty() && !has_predictor) {
      if (contexts)
        contexts_kernel()(base, n, model_.offset, nullptr, classes_, last_class(), contexts);
      return base;
    }
    for (std::size_t done = 0; done < n;) {
      const std::size_t row = (first + done) / shape.columns;
      const std::size_t column = (first + done) % shape.columns;
      const std::size_t width = std::min(shape.columns - column, n - done);
      const std::size_t at = shape.first_column + column;
      const int scale = side_info.scales.empty() ? 0 : side_info.scales[row];
      const std::uint8_t* words = base + done * sizeof(Word);
      std::uint8_t* const predicted = space.words + done * sizeof(Word);
      if (!side_info.flags.empty() && side_info.flags[row]) {
        apply_decay(words, width, predicted);
        if (is_rounded) round_to_stride<Words>(predicted, width, model_.stride);
        const int z = std::clamp(scale, 0, last_class());
        if (contexts) std::fill_n(contexts + done, width, classes_.contexts[z]);
      } else {
        if (model_.rank() > 0) {
          const std::int32_t* product = products(shape, side_info, row, column, width, space);
          kernels_.predict[kind_of<Words>](words, product, width, model_.floor, predicted);
          words = predicted;
        } else if (has_predictor) {
          std::memcpy(predicted, words, width * sizeof(Word));
          words = predicted;
        }
        if (is_rounded) round_to_stride<Words>(predicted, width, model_.stride);
        const std::int16_t* columns = column_scales_.empty() ? nullptr : &column_scales_[at];
        if (contexts)
          contexts_kernel()(words, width, scale + model_.offset, columns, classes_, last_class(),
                            contexts + done);
      }
      done += width;
    }
    return has_predictor ? space.words : base;
  }

  const Kernels& kernels() const { return kernels_; }
  // out = predictions plus decoded differences.
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

  // The low-rank products of `width` words of a row, from `column` on.
  const std::int32_t* products(const BlockShape& shape, const RowSideInfo& side_info,
                               std::size_t row, std::size_t column, std::size_t width,
                               Workspace<Words>& space) const {
    constexpr std::size_t most_columns = 8 * chunk;
    auto& cached = space.products[space.is_backward ? row / 4 % 2 : 0];
    const auto multiply = [&](std::size_t from, std::size_t n_rows, std::size_t left,
                              std::size_t n) {
      cached.values.resize(std::max(cached.values.size(), n_rows * n));
      right_.multiply(kernels_, &side_info.left[from * padded_rank()], n_rows,
                      shape.first_column + left, n, cached.values.data());
      if (model_.is_product_rounded)
        kernels_.round(cached.values.data(), n_rows * n,
                       Words::mantissa_bits + 1 - int(model_.stride));
    };
    if (shape.columns > most_columns || !space.is_sequential) {
      multiply(row, 1, column, width);
      return cached.values.data();
    }
    if (row < cached.first_row || row >= cached.first_row + cached.n_rows) {
      cached.first_row = row / 4 * 4;
      cached.n_rows = std::min<std::size_t>(4, shape.rows - cached.first_row);
      multiply(cached.first_row, cached.n_rows, 0, shape.columns);
    }
    return &cached.values[(row - cached.first_row) * shape.columns + column];
  }

  // Predicts words of a weight-decay row: the highest mantissa bits of a word choose its step.
  void apply_decay(const std::uint8_t* words, std::size_t n, std::uint8_t* out) const {
    const int below = Words::mantissa_bits - model_.decay_bits;
    const std::size_t mask = decay_steps_.size() - 1;
    for (std::size_t j = 0; j < n; ++j) {
      const Word word = load<Word>(words + j * sizeof(Word));
      const Word step = decay_steps_[std::size_t(word >> below) & mask];
      store<Word>(out + j * sizeof(Word), Words::moved(word, step));
    }
  }

  const Kernels& kernels_;
  Model model_;
  DecodingTables tables_;
  ClassTable classes_;  // entries beyond the last class repeat it
  std::vector<std::int16_t> column_scales_;
  std::vector<Word> decay_steps_;
  RightFactor right_;
};

}  // namespace deltahub
