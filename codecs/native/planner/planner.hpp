// Planning: from a frame's words to the model that codes them in few bits. Not part of the format:
// another choice makes other frames, and every decoder reads them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "fm_delta/decode.hpp"
#include "fm_delta/plan.hpp"
#include "planner/class_counts.hpp"
#include "planner/context_clustering.hpp"
#include "planner/delta_bins.hpp"
#include "planner/sample.hpp"
#include "planner/sampled_ranges.hpp"
#include "planner/scales.hpp"
#include "planner/weight_decay_rows.hpp"

namespace deltahub {

// A frame's words, its rectangle and what predicts them, while the model is still being made.
template <class Words>
class Planner {
 public:
  using Word = typename Words::Word;
  using Wide = typename Words::Wide;

  Planner(const Kernels& kernels, const std::uint8_t* source, const std::uint8_t* base,
          std::size_t rows, std::size_t columns, Effort effort, const LowRank& low_rank,
          unsigned stride)
      : kernels_(kernels), source_(source), base_(base), shape_{rows, columns, 0},
        effort_(effort), low_rank_(low_rank), bins_(kernels, stride) {}

  Plan<Words> plan() {
    Plan<Words> plan;
    plan.model = trial_model();
    DecayedRows<Words> decayed =
        find_decayed_rows<Words>(source_, base_, shape_.rows, shape_.columns);
    plan.model.staircase_bits = decayed.staircase_bits;
    plan.rows.flags = std::move(decayed.flags);
    plan.columns.stairs = std::move(decayed.stairs);
    const RowAndColumnScales scales = measured(plan);
    const Sample::Option best = chosen(plan, scales, sample_step(all(), care().sampled));
    ClassCounts classes = counted(plan, scales, best);
    // Where hardly a word changes, the shortest code of a short table is too long.
    finish(plan, classes, best.bits < best.counted ? max_table_log : care().most_table_log);
    return plan;
  }

  // About how many bytes `count` words take of which the frame has some, from counting alone: with
  // a table for each class, whose own size stands for those that classes would share.
  std::uint64_t estimated_bytes(std::size_t count) const {
    Plan<Words> plan;
    plan.model = trial_model();
    const Sample::Option option = chosen(plan, measured(plan), 1);
    const std::uint64_t tables = std::min<std::uint64_t>(option.n_classes, care().tables);
    return (scaled(option.bits, count, option.counted) + tables * bits_of_a_table + 7) / 8;
  }

  // One in so many pieces of `count` words, for a sample of about so many.
  static std::size_t sample_step(std::size_t count, std::size_t sampled) {
    return std::max<std::size_t>(count / sampled, 1);
  }
  static constexpr std::size_t sample_piece = 64, sampled_to_estimate = std::size_t(1) << 13;

 private:
  std::size_t all() const { return shape_.rows * shape_.columns; }
  // How much of a frame planning looks at.
  struct Care {
    std::size_t counted;  // words that the statistics see
    std::size_t sampled;  // those of them that say which classes pay
    std::size_t enough;   // words of each row and column that tell their scales
    std::size_t reach;    // how far clustering looks for what is alike
    std::size_t tables;   // at most
    std::size_t together = 1;  // classes that share a context whatever was counted; a power of two
    int most_table_log = max_table_log;
  };
  Care care() const {
    constexpr std::size_t one = 1;
    if (effort_ == Effort::max)
      return {all(), std::max(all() / 4, one << 15), std::max(shape_.rows, shape_.columns),
              max_classes, max_tables};
    if (effort_ == Effort::fast) return {one << 15, one << 12, 64, 3, 12, 2, 9};
    // Frames of BF16 are made many times as fast as others, and take no more for it than 0.3 %.
    if (kind_of<Words> == kind_of<Bf16Words>) return {one << 16, one << 12, 64, 6, max_tables};
    return {one << 17, one << 15, 256, 16, max_tables};
  }
  static constexpr std::size_t least_for_scales = 32;  // rows and columns
  static constexpr std::uint64_t bits_of_a_table = 256;
  static constexpr int middle = middle_exponent<Words>;

  // A model whose classes are told apart and have no scales, for counting.
  Model trial_model() const {
    Model model;
    model.stride = bins_.stride();
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
    FrameModel<Words> frame(kernels_, std::move(model), false);
    if (plan.model.staircase_bits > 0) frame.set_stairs(plan.columns.stairs);
    if (low_rank_.rank > 0) frame.set_right(low_rank_.right, shape_.columns);
    return frame;
  }
  RowSides sides_of(const Plan<Words>& plan) const {
    RowSides sides;
    sides.flags = plan.rows.flags;
    if (low_rank_.rank == 0) return sides;
    const std::size_t rank = std::size_t(low_rank_.rank);
    const std::size_t filled = filled_rank(kernels_, rank);
    sides.left.resize(shape_.rows * filled);
    for (std::size_t i = 0; i < shape_.rows; ++i)
      std::copy_n(&low_rank_.left[i * rank], rank, &sides.left[i * filled]);
    return sides;
  }

  // Calls visit(row, first column, n, predicted words) for the pieces that SomePieces tells of.
  // contexts: null, or those of the piece in hand.
  template <class Visit>
  void for_each_piece(const FrameModel<Words>& frame, const RowSides& sides, std::size_t step,
                      std::size_t phase, Context* contexts, Visit&& visit) const {
    Workspace<Words> space;
    space.is_sequential = step == 1;
    SomePieces at{.rows = shape_.rows,
                  .columns = shape_.columns,
                  .step = step,
                  .phase = phase,
                  .piece = step == 1 ? chunk : sample_piece};
    SomePieces ahead = at;
    const auto fetch_next = [&] {
      if (step == 1 || !ahead.skip_ended_rows()) return;
      fetch(source_ + ahead.begin() * sizeof(Word), ahead.width() * sizeof(Word));
      fetch(base_ + ahead.begin() * sizeof(Word), ahead.width() * sizeof(Word));
      ahead.advance();
    };
    constexpr int n_ahead = 8;
    for (int i = 0; i < n_ahead; ++i) fetch_next();
    for (; at.skip_ended_rows(); at.advance()) {
      fetch_next();
      visit(at.row, at.column(), at.width(),
            frame.predict(shape_, sides, at.begin(), at.width(),
                          base_ + at.begin() * sizeof(Word), contexts, space));
    }
  }

  // Of the pieces on which scales are measured: 64 words of each row and column tell their scale to a
  // quarter of an octave, 256 to an eighth. A prime, or 1, so that most other steps have no divisor
  // in common with it.
  std::size_t scale_step() const {
    const auto is_prime = [](std::size_t step) {
      for (std::size_t divisor = 2; divisor * divisor <= step; ++divisor)
        if (step % divisor == 0) return false;
      return true;
    };
    std::size_t step = std::max<std::size_t>(std::min(shape_.rows, shape_.columns) / care().enough, 1);
    while (!is_prime(step)) --step;
    return step;
  }
  // A step no smaller whose pieces are those that scales were measured on as often as all pieces are:
  // their diagonals meet where both steps' common divisor divides how far apart they begin. On those
  // alone scales would seem to say more than they do; on the others alone, a class that both have
  // together would not be seen at all.
  std::size_t apart(std::size_t step) const {
    while (std::gcd(step, scale_step()) > 1) ++step;
    return step;
  }
  // Of the pieces to be looked at, so that at least one is.
  std::size_t phase_of(std::size_t step) const {
    const std::size_t phase = step / 2;
    return shape_.rows >= step || shape_.columns > sample_piece * phase ? phase : 0;
  }
  const std::uint8_t* source_at(std::size_t row, std::size_t column) const {
    return source_ + (row * shape_.columns + column) * sizeof(Word);
  }
  static int exponent_at(const std::uint8_t* words, std::size_t j) {
    return Words::exponent_bits == 0
               ? 0
               : std::max(int(Words::exponent(load<Word>(words + j * sizeof(Word)))), 1);
  }
  bool is_scaled() const {
    return shape_.rows >= least_for_scales && shape_.columns >= least_for_scales;
  }
  static bool has_decayed(const RowSides& sides, std::size_t row) {
    return !sides.flags.empty() && sides.flags[row] != 0;
  }

  // Empty where the frame is too small for scales.
  RowAndColumnScales measured(const Plan<Words>& plan) const {
    if (!is_scaled()) return {};
    ScaleSums sums(shape_.rows, shape_.columns);
    const RowSides sides = sides_of(plan);
    std::size_t last_row = 0;
    const auto finish = [&](std::size_t row) { sums.finish_row(row, !has_decayed(sides, row)); };
    for_each_piece(counting_frame(plan, 0), sides, scale_step(), 0, nullptr,
                   [&](std::size_t row, std::size_t column, std::size_t n,
                       const std::uint8_t* words) {
                     if (row != last_row) finish(std::exchange(last_row, row));
                     sums.added(double(kernels_.sizes[kind_of<Words>](
                         source_at(row, column), words, n, !has_decayed(sides, row),
                         sums.piece(column, n))));
                   });
    finish(last_row);
    return {.rows = sums.rows(), .columns = sums.columns()};
  }

  // Which scales pay, as one in `least_step` pieces or somewhat fewer says.
  Sample::Option chosen(const Plan<Words>& plan, const RowAndColumnScales& scales,
                        std::size_t least_step) const {
    const RowSides sides = sides_of(plan);
    const std::size_t step = apart(least_step);
    Sample sample(Words::word_bits, middle, care().together);
    for_each_piece(counting_frame(plan, 0), sides, step, phase_of(step), nullptr,
                   [&](std::size_t row, std::size_t column, std::size_t n,
                       const std::uint8_t* words) {
                     const Sample::Room room = sample.add(row, column, n, has_decayed(sides, row));
                     const std::uint8_t* const source = source_at(row, column);
                     bins_.find(source, words, n, room.bins);
                     for (std::size_t j = 0; j < n; ++j)
                       room.exponents[j] = std::int16_t(exponent_at(words, j));
                   });
    if (!is_scaled()) return sample.tried(scales, false, false);
    const std::uint64_t row_bits = bits_with_own_table(counted(scales.rows.around, 1), 16);
    const std::uint64_t column_bits = bits_with_own_table(counted(scales.columns.around, 1), 16);
    // Of the whole frame with that option, and of its scales.
    const auto bits_of = [&](const Sample::Option& option) {
      return scaled(option.bits, all(), option.counted) + (option.by_row ? row_bits : 0) +
             (option.by_column ? column_bits : 0);
    };
    Sample::Option best;
    const auto try_option = [&](bool by_row, bool by_column) {
      const Sample::Option option = sample.tried(scales, by_row, by_column);
      if (best.bits == 0 || bits_of(option) < bits_of(best)) best = option;
    };
    // The class of a row that decayed is its scale.
    const bool is_decayed = plan.model.staircase_bits > 0;
    if (!is_decayed) try_option(false, false), try_option(false, true);
    try_option(true, false);
    if (is_decayed || best.by_row || best.by_column) try_option(true, true);
    return best;
  }

  // The differences of more words, by class.
  ClassCounts counted(const Plan<Words>& plan, const RowAndColumnScales& scales,
                  const Sample::Option& option) const {
    ClassCounts classes;
    classes.by_row = option.by_row, classes.by_column = option.by_column;
    classes.offset = std::clamp(option.offset, -scale_end, scale_end - 1);
    classes.rows = sides_of(plan);
    if (option.by_row) classes.rows.scales = scales.rows.around;
    if (option.by_column) classes.columns = scales.columns.around;
    for (std::size_t row = 0; row < classes.rows.flags.size(); ++row)
      if (classes.rows.flags[row])  // its class is its scale alone
        classes.rows.scales[row] = std::int16_t(std::clamp(
            classes.rows.scales[row] + classes.offset - 4 * middle, -scale_end, scale_end - 1));
    FrameModel<Words> frame = counting_frame(plan, classes.offset);
    frame.set_column_scales(classes.columns);
    constexpr std::size_t end = n_bins(Words::word_bits);
    classes.together = care().together;
    classes.histograms.assign(classes.n_classes() * end, 0);
    const auto n_together = unsigned(std::countr_zero(classes.together));
    std::uint32_t* const counts = classes.histograms.data();
    Context z[chunk];
    std::uint16_t bins[chunk];
    std::uint32_t keys[chunk];
    const std::size_t step = apart(std::max<std::size_t>(all() / care().counted, 1));
    for_each_piece(frame, classes.rows, step, phase_of(step), z,
                   [&](std::size_t row, std::size_t column, std::size_t n,
                       const std::uint8_t* words) {
                     bins_.find(source_at(row, column), words, n, bins);
                     for (std::size_t j = 0; j < n; ++j)
                       keys[j] = (std::uint32_t(z[j]) >> n_together) * std::uint32_t(end) + bins[j];
                     for (std::size_t j = 0; j < n; ++j) ++counts[keys[j]];
                     classes.counted += n;
                   });
    return classes;
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
  // Contexts share tables; then everything is known.
  void finish(Plan<Words>& plan, ClassCounts& classes, int most_table_log) const {
    const std::size_t count = shape_.rows * shape_.columns;
    std::vector<Member> members;
    const std::vector<std::size_t> owner = classes.absorb_thin();
    for (std::size_t z = 0; z < classes.n_classes(); ++z)
      members.push_back({.histogram = classes.histogram(z), .number_bits = Words::word_bits,
                         .counted = classes.counted,
                         .count = count});
    std::deque<Histogram> sides;
    const auto add_side = [&](Histogram histogram, int number_bits = 16) {
      members.push_back({.histogram = sides.emplace_back(std::move(histogram)),
                         .number_bits = number_bits});
      return members.size() - 1;
    };
    std::size_t row_at = 0, column_at = 0;
    if (classes.by_row) row_at = add_side(counted(classes.rows.scales, 1));
    if (classes.by_column) column_at = add_side(counted(classes.columns, 1));
    std::size_t flags_at = 0;
    if (plan.model.staircase_bits > 0) {
      flags_at = add_side(counted(classes.rows.flags, 1));
      add_side(counted_stairs(plan.columns.stairs), Words::word_bits);
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
    model.table_log =
        std::clamp(int(std::bit_width(count)) - 6, min_table_log, most_table_log);
    const Clustering clustering = 
        cluster(kernels_, members, model.table_log, care().tables, care().reach);
    const auto context = [&](std::size_t i) {
      return context_of(members[i].table, members[i].shift);
    };
    const bool is_exact = classes.counted == count;
    model.tables.clear();
    for (const Counts& counts : clustering.tables)
      model.tables.push_back(
          normalized({counts.begin(), counts.end()}, model.table_log, !is_exact));
    model.offset = classes.offset;
    model.classes.clear();
    for (std::size_t z = 0; z < max_classes; ++z)
      model.classes.push_back(context(owner[z / classes.together]));
    if (classes.by_row) model.row_scales = context(row_at);
    if (classes.by_column) model.column_scales = context(column_at);
    if (model.staircase_bits > 0)
      model.flags = context(flags_at), model.stairs = context(flags_at + 1);
    for (std::size_t k = 0; k < rank; ++k)
      model.components[k].left.context = context(component_at[k]),
      model.components[k].right.context = context(component_at[k] + 1);
    plan.rows = std::move(classes.rows);
    plan.columns.scales = std::move(classes.columns);
    plan.columns.right = low_rank_.right;
    plan.estimated_bytes = (clustering.bits + 7) / 8;
  }

  const Kernels& kernels_;
  const std::uint8_t* source_;
  const std::uint8_t* base_;
  BlockShape shape_;
  Effort effort_;
  const LowRank& low_rank_;
  StridedBins<Words> bins_;
};

}  // namespace deltahub
