// Planning: from a frame's words to the model that codes them in few bits. Not part of the format:
// another choice makes other frames, and every decoder reads them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "clustering.hpp"
#include "decayed_rows.hpp"
#include "decode.hpp"
#include "plan.hpp"
#include "scales.hpp"

namespace deltahub {

// A frame's words, its rectangle and what predicts them, while the model is still being made.
template <class Words>
class Planner {
 public:
  using Word = typename Words::Word;
  using Wide = typename Words::Wide;

  Planner(const Kernels& kernels, const std::uint8_t* source, const std::uint8_t* base,
          std::size_t rows, std::size_t columns, Effort effort, const LowRank& low_rank)
      : kernels_(kernels), source_(source), base_(base), shape_{rows, columns, 0},
        effort_(effort), low_rank_(low_rank) {}

  Plan<Words> plan() {
    Plan<Words> plan;
    plan.model = trial_model();
    DecayedRows<Words> decayed =
        find_decayed_rows<Words>(source_, base_, shape_.rows, shape_.columns);
    plan.model.staircase_bits = decayed.staircase_bits;
    plan.rows.flags = std::move(decayed.flags);
    plan.columns.stairs = std::move(decayed.stairs);
    Option best;
    if (shape_.rows < least_for_scales || shape_.columns < least_for_scales) {
      best = opened(plan, {}, false, false, counted_words());
    } else {
      // Which scales pay is seen on a sample, with a table for each class.
      const Scales scales = measured(plan);
      const std::size_t tried = counted_words() / 4;
      best.bits = ~std::uint64_t(0);
      for (const bool by_row : {false, true}) {
        // The class of a row that decayed is its scale.
        if (!by_row && plan.model.staircase_bits > 0) continue;
        for (const bool by_column : {false, true}) {
          Option option = opened(plan, scales, by_row, by_column, tried);
          if (option.bits < best.bits) best = std::move(option);
        }
      }
      if (best.counted < all())
        best = opened(plan, scales, best.by_row, best.by_column, counted_words());
    }
    finish(plan, best);
    return plan;
  }

 private:
  std::size_t all() const { return shape_.rows * shape_.columns; }
  // How many words the statistics should see; the greatest effort sees all of them.
  std::size_t counted_words() const {
    if (effort_ == Effort::max) return all();
    return effort_ == Effort::fast ? std::size_t(1) << 16 : std::size_t(1) << 18;
  }
  static constexpr std::size_t least_for_scales = 32;  // rows and columns
  static constexpr std::uint64_t least_in_class = 64;
  static constexpr int middle =
      Words::exponent_bits == 0 ? 0 : (1 << std::max(Words::exponent_bits - 1, 0)) - 1;

  struct Scales {
    ScaleSums::Scales rows, columns;
  };
  // A way to make classes, and what the differences look like in them.
  struct Option {
    bool by_row = false, by_column = false;
    int offset = 0;
    RowSides rows;
    std::vector<std::int16_t> columns;
    std::vector<Histogram> classes;
    std::uint64_t counted = 0;
    std::uint64_t bits = 0;
  };

  // A model whose classes are told apart and have no scales, for counting.
  Model trial_model() const {
    Model model;
    model.table_log = min_table_log;
    model.tables.emplace_back(Frequencies(n_delta_symbols));
    model.tables[0][2] = 1u << min_table_log;
    for (unsigned z = 0; z < max_classes; ++z) model.classes.push_back(Context(z));
    model.floor = low_rank_.floor;
    model.is_product_rounded = low_rank_.is_rounded;
    model.components.resize(std::size_t(low_rank_.rank));
    return model;
  }
  FrameModel<Words> counting_frame(const Plan<Words>& plan, int offset) const {
    Model model = trial_model();
    model.staircase_bits = plan.model.staircase_bits;
    model.offset = offset;
    FrameModel<Words> frame(kernels_, std::move(model));
    if (plan.model.staircase_bits > 0) frame.set_stairs(plan.columns.stairs);
    if (low_rank_.rank > 0) frame.set_right(low_rank_.right, shape_.columns);
    return frame;
  }
  RowSides sides_of(const Plan<Words>& plan) const {
    RowSides sides;
    sides.flags = plan.rows.flags;
    if (low_rank_.rank == 0) return sides;
    const std::size_t rank = std::size_t(low_rank_.rank), even = (rank + 1) / 2 * 2;
    sides.left.resize(shape_.rows * even);
    for (std::size_t i = 0; i < shape_.rows; ++i)
      std::copy_n(&low_rank_.left[i * rank], rank, &sides.left[i * even]);
    return sides;
  }

  // Calls visit(row, first column, n, classes, predicted words) for one in `step` pieces of the
  // rows, on diagonals, so that each row and each column is seen as often.
  template <class Visit>
  void for_each_piece(const FrameModel<Words>& frame, const RowSides& sides, std::size_t step,
                      Visit&& visit) const {
    Context classes[chunk];
    Workspace<Words> space;
    space.is_sequential = step == 1;
    const std::size_t piece = step == 1 ? chunk : 64;
    const std::size_t n_pieces = (shape_.columns + piece - 1) / piece;
    for (std::size_t row = 0; row < shape_.rows; ++row) {
      for (std::size_t i = (step - row % step) % step; i < n_pieces; i += step) {
        const std::size_t column = i * piece, n = std::min(piece, shape_.columns - column);
        const std::size_t at = row * shape_.columns + column;
        const std::uint8_t* words =
            frame.predict(shape_, sides, at, n, base_ + at * sizeof(Word), classes, space);
        visit(row, column, n, classes, words);
      }
    }
  }

  Wide delta_at(std::size_t row, std::size_t column, const std::uint8_t* words,
                std::size_t j) const {
    const std::size_t at = row * shape_.columns + column + j;
    return Words::delta(load<Word>(source_ + at * sizeof(Word)),
                        load<Word>(words + j * sizeof(Word)));
  }
  static int exponent_at(const std::uint8_t* words, std::size_t j) {
    return Words::exponent_bits == 0
               ? 0
               : std::max(int(Words::exponent(load<Word>(words + j * sizeof(Word)))), 1);
  }
  static double size_of(Wide delta) {
    const Wide negative = sign_mask(delta);
    return double(std::int64_t(std::uint64_t(delta ^ negative) & low_masks[63])) +
           double(negative & 1);
  }

  Scales measured(const Plan<Words>& plan) const {
    ScaleSums sums(shape_.rows, shape_.columns);
    std::vector<double> powers(std::size_t(1) << Words::exponent_bits);
    for (std::size_t e = 0; e < powers.size(); ++e)
      powers[e] = power_of_two(std::clamp(int(e) - middle, -500, 500));
    const RowSides sides = sides_of(plan);
    // A few hundred words of each row and column tell their scale to an eighth of an octave.
    const std::size_t enough = effort_ == Effort::fast ? 128 : 256;
    const std::size_t least_side = std::min(shape_.rows, shape_.columns);
    const std::size_t step =
        effort_ == Effort::max ? 1 : std::max<std::size_t>(least_side / enough, 1);
    std::size_t last_row = 0;
    const auto has_decayed = [&](std::size_t row) {
      return !sides.flags.empty() && sides.flags[row] != 0;
    };
    const auto finish = [&](std::size_t row) { sums.finish_row(row, !has_decayed(row)); };
    for_each_piece(counting_frame(plan, 0), sides, step,
                   [&](std::size_t row, std::size_t column, std::size_t n, const Context*,
                       const std::uint8_t* words) {
                     if (row != last_row) finish(std::exchange(last_row, row));
                     const bool is_decayed = has_decayed(row);
                     for (std::size_t j = 0; j < n; ++j) {
                       const double size = size_of(delta_at(row, column, words, j));
                       const double unit = powers[std::size_t(exponent_at(words, j))];
                       sums.add(column + j, is_decayed ? size : size * unit);
                     }
                   });
    finish(last_row);
    return {.rows = sums.rows(), .columns = sums.columns()};
  }

  // The classes of one option, over about so many words; and about how many bits they take.
  Option opened(const Plan<Words>& plan, const Scales& scales, bool by_row, bool by_column,
                std::size_t n_words) const {
    Option option;
    option.by_row = by_row, option.by_column = by_column;
    option.rows = sides_of(plan);
    if (by_row) option.rows.scales = scales.rows.around;
    if (by_column) option.columns = scales.columns.around;
    const std::size_t count = shape_.rows * shape_.columns;
    const std::size_t step = std::max<std::size_t>(count / std::max<std::size_t>(n_words, 1), 1);
    option.offset = offset_for(option, scales.rows.mean);
    if (plan.model.staircase_bits > 0) set_decayed_scales(option, scales.rows.mean);
    FrameModel<Words> frame = counting_frame(plan, option.offset);
    frame.set_column_scales(option.columns);
    option.classes.assign(max_classes, Histogram(n_bins(Words::word_bits)));
    for_each_piece(frame, option.rows, step,
                   [&](std::size_t row, std::size_t column, std::size_t n, const Context* classes,
                       const std::uint8_t* words) {
                     for (std::size_t j = 0; j < n; ++j) {
                       const Wide delta = delta_at(row, column, words, j);
                       const Wide negative = sign_mask(delta);
                       const unsigned bin =
                           bin_of(Wide(delta ^ negative), unsigned(negative & 1));
                       ++option.classes[classes[j]][bin];
                     }
                     option.counted += n;
                   });
    for (const Histogram& histogram : option.classes)
      option.bits += scaled(alone(histogram, Words::word_bits), count, option.counted);
    if (by_row) option.bits += alone(counted(option.rows.scales, 1), 16);
    if (by_column) option.bits += alone(counted(option.columns, 1), 16);
    return option;
  }

  // A row that decayed has the class of its differences' size itself, whatever the exponent: what
  // was measured of it is moved by as much as others get by exponent and offset.
  void set_decayed_scales(Option& option, int mean) const {
    for (std::size_t row = 0; row < shape_.rows; ++row) {
      if (!option.rows.flags[row]) continue;
      const int z = option.rows.scales[row] + mean + option.offset - (mean + 4 * middle);
      option.rows.scales[row] = std::int16_t(std::clamp(z, -scale_end, scale_end - 1));
    }
  }

  // The offset that puts the largest classes, but for a few words, at the upper end.
  int offset_for(const Option& option, int mean) const {
    // 4 * log2 of the expected number of units: scale + 4 * middle - 4 * exponent.
    const int at_zero = mean + 4 * middle;
    std::vector<std::uint64_t> seen;
    constexpr int lowest = -20000;
    seen.assign(40000, 0);
    std::uint64_t total = 0;
    const std::size_t count = shape_.rows * shape_.columns;
    const std::size_t step = std::max<std::size_t>(count / 16384, 1);
    for (std::size_t at = 0; at < count; at += step) {
      const std::size_t row = at / shape_.columns, column = at % shape_.columns;
      if (!option.rows.flags.empty() && option.rows.flags[row]) continue;
      int z = at_zero - 4 * exponent_at(base_ + at * sizeof(Word), 0) * (Words::exponent_bits > 0);
      if (option.by_row) z += option.rows.scales[row];
      if (option.by_column) z += option.columns[column];
      ++seen[std::size_t(std::clamp(z - lowest, 0, 39999))];
      ++total;
    }
    std::uint64_t above = 0;
    int z = 39999;
    while (z > 0 && (above += seen[std::size_t(z)]) * 512 < total) --z;
    return std::clamp(at_zero + max_classes - 1 - (z + lowest), -scale_end, scale_end - 1);
  }

  static Histogram counted(const std::vector<std::int16_t>& numbers, std::size_t step) {
    Histogram histogram(n_bins(16));
    for (std::size_t i = 0; i < numbers.size(); i += step) count_into(histogram, numbers[i]);
    return histogram;
  }
  // n numbers, one in every `step`, without the low digits that none of them has: `stride` of them.
  static Histogram counted_factor(const std::int16_t* numbers, std::size_t n, std::size_t step,
                                  unsigned& stride) {
    std::uint16_t seen = 0;
    for (std::size_t i = 0; i < n; ++i) seen |= std::uint16_t(numbers[i * step]);
    stride = seen ? unsigned(std::countr_zero(seen)) : 0;
    Histogram histogram(n_bins(16));
    for (std::size_t i = 0; i < n; ++i)
      count_into(histogram, std::int16_t(numbers[i * step] >> stride));
    return histogram;
  }
  static Histogram counted_stairs(const std::vector<Word>& stairs) {
    Histogram histogram(n_bins(Words::word_bits));
    Wide before = 0;
    for (const Word stair : stairs) {
      const Wide step = sign_extended<Word>(Wide(stair - std::exchange(before, stair)));
      const Wide negative = sign_mask(step);
      ++histogram[bin_of(Wide(step ^ negative), unsigned(negative & 1))];
    }
    return histogram;
  }
  static void count_into(Histogram& histogram, std::int16_t number) {
    const std::int16_t negative = std::int16_t(number >> 15);
    ++histogram[bin_of(std::uint32_t(std::uint16_t(number ^ negative)), unsigned(negative & 1))];
  }
  static std::uint64_t alone(const Histogram& histogram, int number_bits) {
    Counts counts{};
    const unsigned shift = total_of(histogram) ? shift_for(histogram) : 0;
    add_counts(counts, histogram, shift);
    return (entropy_bits(counts) >> 16) + raw_bits(counts, shift, number_bits);
  }

  // Contexts share tables; then everything is known.
  void finish(Plan<Words>& plan, Option& option) const {
    const std::size_t count = shape_.rows * shape_.columns;
    std::vector<Member> members;
    const std::vector<std::size_t> owner = absorb_thin(option.classes);
    for (Histogram& histogram : option.classes)
      members.push_back({.histogram = std::move(histogram), .number_bits = Words::word_bits,
                         .counted = option.counted,
                         .count = count});
    const auto add_side = [&](Histogram histogram) {
      members.push_back({.histogram = std::move(histogram), .number_bits = 16});
      return members.size() - 1;
    };
    std::size_t row_at = 0, column_at = 0;
    if (option.by_row) row_at = add_side(counted(option.rows.scales, 1));
    if (option.by_column) column_at = add_side(counted(option.columns, 1));
    std::size_t flags_at = 0;
    if (plan.model.staircase_bits > 0) {
      flags_at = add_side(counted(option.rows.flags, 1));
      members.push_back({.histogram = counted_stairs(plan.columns.stairs),
                         .number_bits = Words::word_bits});
    }
    const std::size_t rank = std::size_t(low_rank_.rank);
    std::vector<std::size_t> component_at;
    for (std::size_t k = 0; k < rank; ++k) {
      Component& component = plan.model.components[k];
      component_at.push_back(
          add_side(counted_factor(&low_rank_.left[k], shape_.rows, rank, component.left.stride)));
      add_side(counted_factor(&low_rank_.right[k * shape_.columns], shape_.columns, 1,
                              component.right.stride));
    }
    Model& model = plan.model;
    model.table_log = std::clamp(int(std::bit_width(count)) - 6, min_table_log, max_table_log);
    const Clustering clustering = cluster(members, model.table_log, most_tables());
    const auto context = [&](std::size_t i) {
      return context_of(members[i].table, members[i].shift);
    };
    const bool is_exact = option.counted == count;
    model.tables.clear();
    for (const Counts& counts : clustering.tables)
      model.tables.push_back(
          normalized({counts.begin(), counts.end()}, model.table_log, !is_exact));
    model.offset = option.offset;
    model.classes.clear();
    for (std::size_t z = 0; z < max_classes; ++z) model.classes.push_back(context(owner[z]));
    if (option.by_row) model.row_scales = context(row_at);
    if (option.by_column) model.column_scales = context(column_at);
    if (model.staircase_bits > 0)
      model.flags = context(flags_at), model.stairs = context(flags_at + 1);
    for (std::size_t k = 0; k < rank; ++k)
      model.components[k].left.context = context(component_at[k]),
      model.components[k].right.context = context(component_at[k] + 1);
    plan.rows = std::move(option.rows);
    plan.columns.scales = std::move(option.columns);
    plan.columns.right = low_rank_.right;
    plan.estimated_bytes = (clustering.bits + 7) / 8;
  }

  std::size_t most_tables() const { return effort_ == Effort::max ? max_tables : 12; }

  // Classes of few words are counted with a neighbour, whose context they take. The result: the
  // class whose context each one takes.
  static std::vector<std::size_t> absorb_thin(std::vector<Histogram>& classes) {
    std::vector<std::size_t> owner(classes.size());
    std::size_t z = 0;
    while (z < classes.size()) {
      std::size_t last = z;
      std::uint64_t total = total_of(classes[z]);
      while (total < least_in_class && last + 1 < classes.size()) {
        ++last;
        total += total_of(classes[last]);
        add(classes[z], classes[last]);
      }
      std::size_t into = z;
      if (total < least_in_class && z > 0) {
        into = owner[z - 1];
        add(classes[into], classes[z]);
        classes[z].assign(classes[z].size(), 0);
      }
      for (; z <= last; ++z) owner[z] = into;
    }
    return owner;
  }
  // Moves the counts of `from`.
  static void add(Histogram& to, Histogram& from) {
    for (std::size_t bin = 0; bin < to.size(); ++bin) to[bin] += std::exchange(from[bin], 0);
  }

  const Kernels& kernels_;
  const std::uint8_t* source_;
  const std::uint8_t* base_;
  BlockShape shape_;
  Effort effort_;
  const LowRank& low_rank_;
};

}  // namespace deltahub
