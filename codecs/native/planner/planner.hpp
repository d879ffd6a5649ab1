// Chooses the model that codes the words of a frame in few bits. A word is the bit pattern of one
// element. The choice is not part of the format: every decoder reads frames of any model.
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

// Plans one frame of rows x columns words.
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
    plan.model = counting_model();
    WeightDecayRows<Words> weight_decay =
        find_weight_decay_rows<Words>(source_, base_, shape_.rows, shape_.columns);
    plan.model.decay_bits = weight_decay.decay_bits;
    plan.rows.flags = std::move(weight_decay.flags);
    plan.columns.decay_steps = std::move(weight_decay.decay_steps);
    const RowAndColumnScales scales = measure_scales(plan);
    const Sample::Option best =
        choose_scales(plan, scales, sample_step(n_words(), budget().sample_words));
    ClassCounts classes = count_classes(plan, scales, best);
    // If hardly any word changes, below one bit a word, only a large table has codes that short.
    finish(plan, classes, best.bits < best.n_counted ? max_table_log : budget().table_log_limit);
    return plan;
  }

  // Estimates the bytes of `count` words, of which the frame is a sample, without clustering: each
  // class has a table of its own, and all tables together are charged a fixed size each.
  std::uint64_t estimated_bytes(std::size_t count) const {
    Plan<Words> plan;
    plan.model = counting_model();
    const Sample::Option option = choose_scales(plan, measure_scales(plan), 1);
    const std::uint64_t n_tables = std::min<std::uint64_t>(option.n_classes, budget().table_limit);
    return (scaled(option.bits, count, option.n_counted) + n_tables * bits_per_table + 7) / 8;
  }

  // The step between sampled ranges of `count` words, so that about `sample_words` words are looked
  // at.
  static std::size_t sample_step(std::size_t count, std::size_t sample_words) {
    return std::max<std::size_t>(count / sample_words, 1);
  }
  static constexpr std::size_t range_words = 64, sampled_to_estimate = std::size_t(1) << 13;

 private:
  std::size_t n_words() const { return shape_.rows * shape_.columns; }
  // How much of a frame planning looks at, by effort.
  struct Budget {
    std::size_t class_words;   // words in the histograms of the classes
    std::size_t sample_words;  // words in the sample that compares ways to make classes
    std::size_t scale_words;   // words of each row and column from which its scale is measured
    std::size_t reach;         // groups that clustering compares each group with
    std::size_t table_limit;   // the most that clustering may leave
    std::size_t classes_per_histogram = 1;  // these always share a context; a power of two
    int table_log_limit = max_table_log;
  };
  Budget budget() const {
    constexpr std::size_t one = 1;
    if (effort_ == Effort::max)
      return {n_words(), std::max(n_words() / 4, one << 15), std::max(shape_.rows, shape_.columns),
              max_classes, max_tables};
    if (effort_ == Effort::fast) return {one << 15, one << 12, 64, 3, 12, 2, 9};
    // With this smaller budget BF16 frames are encoded many times as fast as frames of other
    // dtypes, and become at most 0.3 % larger.
    if (kind_of<Words> == kind_of<Bf16Words>) return {one << 16, one << 12, 64, 6, max_tables};
    return {one << 17, one << 15, 256, 16, max_tables};
  }
  static constexpr std::size_t min_size_for_scales = 32;  // rows and columns
  static constexpr std::uint64_t bits_per_table = 256;
  static constexpr int middle = middle_exponent<Words>;

  // A model for counting: the context of each class is its index, and there are no scales.
  Model counting_model() const {
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
    Model model = counting_model();
    model.decay_bits = plan.model.decay_bits;
    model.offset = offset;
    FrameModel<Words> frame(kernels_, std::move(model), false);
    if (plan.model.decay_bits > 0) frame.set_decay_steps(plan.columns.decay_steps);
    if (low_rank_.rank > 0) frame.set_right(low_rank_.right, shape_.columns);
    return frame;
  }
  RowSideInfo side_info_of(const Plan<Words>& plan) const {
    RowSideInfo side_info;
    side_info.flags = plan.rows.flags;
    if (low_rank_.rank == 0) return side_info;
    const std::size_t rank = std::size_t(low_rank_.rank);
    const std::size_t padded = padded_rank(kernels_, rank);
    side_info.left.resize(shape_.rows * padded);
    for (std::size_t i = 0; i < shape_.rows; ++i)
      std::copy_n(&low_rank_.left[i * rank], rank, &side_info.left[i * padded]);
    return side_info;
  }

  // Calls visit(row, first column, n, predicted words) for each of the SampledRanges. contexts:
  // null, or filled with the contexts of the range before each call.
  template <class Visit>
  void for_each_range(const FrameModel<Words>& frame, const RowSideInfo& side_info,
                      std::size_t step, std::size_t phase, Context* contexts, Visit&& visit) const {
    Workspace<Words> space;
    space.is_sequential = step == 1;
    SampledRanges at{.rows = shape_.rows,
                     .columns = shape_.columns,
                     .step = step,
                     .phase = phase,
                     .range_columns = step == 1 ? chunk : range_words};
    SampledRanges upcoming = at;
    const auto prefetch_next = [&] {
      if (step == 1 || !upcoming.skip_ended_rows()) return;
      prefetch(source_ + upcoming.begin() * sizeof(Word), upcoming.width() * sizeof(Word));
      prefetch(base_ + upcoming.begin() * sizeof(Word), upcoming.width() * sizeof(Word));
      upcoming.advance();
    };
    constexpr int n_upcoming = 8;
    for (int i = 0; i < n_upcoming; ++i) prefetch_next();
    for (; at.skip_ended_rows(); at.advance()) {
      prefetch_next();
      visit(at.row, at.column(), at.width(),
            frame.predict(shape_, side_info, at.begin(), at.width(),
                          base_ + at.begin() * sizeof(Word), contexts, space));
    }
  }

  // The step between the ranges on which scales are measured. From 64 words of a row or column its
  // scale is known to a quarter of an octave, from 256 words to an eighth. The step is 1 or a
  // prime, so that it is coprime to most other steps.
  std::size_t scale_step() const {
    const auto is_prime = [](std::size_t step) {
      for (std::size_t divisor = 2; divisor * divisor <= step; ++divisor)
        if (step % divisor == 0) return false;
      return true;
    };
    std::size_t step =
        std::max<std::size_t>(std::min(shape_.rows, shape_.columns) / budget().scale_words, 1);
    while (!is_prime(step)) --step;
    return step;
  }
  // The smallest step from `step` on that is coprime to scale_step(). Its sample then overlaps the
  // ranges on which scales were measured as often as chance would have it. Two sets of diagonals
  // meet only if the greatest common divisor of the steps divides the distance of their phases. If
  // all sampled ranges were measured, scales would seem better than they are; if none were, classes
  // that only occur in measured ranges would have no counts.
  std::size_t coprime_step(std::size_t step) const {
    while (std::gcd(step, scale_step()) > 1) ++step;
    return step;
  }
  // The phase of a sample: half the step, or 0 if no range would be sampled.
  std::size_t phase_of(std::size_t step) const {
    const std::size_t phase = step / 2;
    return shape_.rows >= step || shape_.columns > range_words * phase ? phase : 0;
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
    return shape_.rows >= min_size_for_scales && shape_.columns >= min_size_for_scales;
  }
  static bool is_weight_decay_row(const RowSideInfo& side_info, std::size_t row) {
    return !side_info.flags.empty() && side_info.flags[row] != 0;
  }

  // Measures scales; empty if the frame is too small for scales.
  RowAndColumnScales measure_scales(const Plan<Words>& plan) const {
    if (!is_scaled()) return {};
    ScaleSums sums(shape_.rows, shape_.columns);
    const RowSideInfo side_info = side_info_of(plan);
    std::size_t last_row = 0;
    const auto finish = [&](std::size_t row) {
      sums.finish_row(row, !is_weight_decay_row(side_info, row));
    };
    for_each_range(
        counting_frame(plan, 0), side_info, scale_step(), 0, nullptr,
        [&](std::size_t row, std::size_t column, std::size_t n, const std::uint8_t* words) {
          if (row != last_row) finish(std::exchange(last_row, row));
          sums.add_sum(double(kernels_.sizes[kind_of<Words>](source_at(row, column), words, n,
                                                             !is_weight_decay_row(side_info, row),
                                                             sums.add_range(column, n))));
        });
    finish(last_row);
    return {.rows = sums.rows(), .columns = sums.columns()};
  }

  // Chooses which scales pay, from a sample of one range in `least_step` or in a few more.
  Sample::Option choose_scales(const Plan<Words>& plan, const RowAndColumnScales& scales,
                               std::size_t least_step) const {
    const RowSideInfo side_info = side_info_of(plan);
    const std::size_t step = coprime_step(least_step);
    Sample sample(Words::word_bits, middle, budget().classes_per_histogram);
    for_each_range(
        counting_frame(plan, 0), side_info, step, phase_of(step), nullptr,
        [&](std::size_t row, std::size_t column, std::size_t n, const std::uint8_t* words) {
          const Sample::Buffers buffers =
              sample.add(row, column, n, is_weight_decay_row(side_info, row));
          const std::uint8_t* const source = source_at(row, column);
          bins_.find(source, words, n, buffers.bins);
          for (std::size_t j = 0; j < n; ++j)
            buffers.exponents[j] = std::int16_t(exponent_at(words, j));
        });
    if (!is_scaled()) return sample.best_offset(scales, false, false);
    const std::uint64_t row_bits = bits_with_own_table(histogram_of(scales.rows.deviations, 1), 16);
    const std::uint64_t column_bits =
        bits_with_own_table(histogram_of(scales.columns.deviations, 1), 16);
    // Estimated bits of the whole frame with an option, including its scales.
    const auto bits_of = [&](const Sample::Option& option) {
      return scaled(option.bits, n_words(), option.n_counted) + (option.by_row ? row_bits : 0) +
             (option.by_column ? column_bits : 0);
    };
    Sample::Option best;
    const auto try_scales = [&](bool by_row, bool by_column) {
      const Sample::Option option = sample.best_offset(scales, by_row, by_column);
      if (best.bits == 0 || bits_of(option) < bits_of(best)) best = option;
    };
    // Weight-decay rows need row scales, because these are their classes.
    const bool has_weight_decay = plan.model.decay_bits > 0;
    if (!has_weight_decay) try_scales(false, false), try_scales(false, true);
    try_scales(true, false);
    if (has_weight_decay || best.by_row || best.by_column) try_scales(true, true);
    return best;
  }

  // Counts the differences of a larger sample by class.
  ClassCounts count_classes(const Plan<Words>& plan, const RowAndColumnScales& scales,
                            const Sample::Option& option) const {
    ClassCounts classes;
    classes.by_row = option.by_row, classes.by_column = option.by_column;
    classes.offset = std::clamp(option.offset, -scale_end, scale_end - 1);
    classes.rows = side_info_of(plan);
    if (option.by_row) classes.rows.scales = scales.rows.deviations;
    if (option.by_column) classes.columns = scales.columns.deviations;
    for (std::size_t row = 0; row < classes.rows.flags.size(); ++row)
      if (classes.rows.flags[row])  // the scale of a weight-decay row is its class
        classes.rows.scales[row] = std::int16_t(std::clamp(
            classes.rows.scales[row] + classes.offset - 4 * middle, -scale_end, scale_end - 1));
    FrameModel<Words> frame = counting_frame(plan, classes.offset);
    frame.set_column_scales(classes.columns);
    constexpr std::size_t end = n_bins(Words::word_bits);
    classes.classes_per_histogram = budget().classes_per_histogram;
    classes.histograms.assign(classes.n_classes() * end, 0);
    const auto log2_per_histogram = unsigned(std::countr_zero(classes.classes_per_histogram));
    std::uint32_t* const counts = classes.histograms.data();
    Context z[chunk];
    std::uint16_t bins[chunk];
    std::uint32_t keys[chunk];
    const std::size_t step =
        coprime_step(std::max<std::size_t>(n_words() / budget().class_words, 1));
    for_each_range(
        frame, classes.rows, step, phase_of(step), z,
        [&](std::size_t row, std::size_t column, std::size_t n, const std::uint8_t* words) {
          bins_.find(source_at(row, column), words, n, bins);
          for (std::size_t j = 0; j < n; ++j)
            keys[j] = (std::uint32_t(z[j]) >> log2_per_histogram) * std::uint32_t(end) + bins[j];
          for (std::size_t j = 0; j < n; ++j) ++counts[keys[j]];
          classes.n_counted += n;
        });
    return classes;
  }

  static Histogram histogram_of(const std::vector<std::int16_t>& numbers, std::size_t step) {
    Histogram histogram(n_bins(16));
    for (std::size_t i = 0; i < numbers.size(); i += step) count_into(histogram, numbers[i]);
    return histogram;
  }
  // Histogram of n numbers, which lie `step` apart, without their `stride` common trailing zero
  // bits.
  static Histogram factor_histogram(const std::int16_t* numbers, std::size_t n, std::size_t step,
                                    unsigned& stride) {
    std::uint16_t seen = 0;
    for (std::size_t i = 0; i < n; ++i) seen |= std::uint16_t(numbers[i * step]);
    stride = seen ? unsigned(std::countr_zero(seen)) : 0;
    Histogram histogram(n_bins(16));
    for (std::size_t i = 0; i < n; ++i)
      count_into(histogram, std::int16_t(numbers[i * step] >> stride));
    return histogram;
  }
  static Histogram decay_step_histogram(const std::vector<Word>& decay_steps) {
    Histogram histogram(n_bins(Words::word_bits));
    Wide before = 0;
    for (const Word step : decay_steps) {
      const Wide rise = sign_extended<Word>(Wide(step - std::exchange(before, step)));
      const Wide negative = sign_mask(rise);
      ++histogram[bin_of(Wide(rise ^ negative), unsigned(negative & 1))];
    }
    return histogram;
  }
  static void count_into(Histogram& histogram, std::int16_t number) {
    const std::int16_t negative = std::int16_t(number >> 15);
    ++histogram[bin_of(std::uint32_t(std::uint16_t(number ^ negative)), unsigned(negative & 1))];
  }
  // Clusters the contexts and completes the plan.
  void finish(Plan<Words>& plan, ClassCounts& classes, int table_log_limit) const {
    const std::size_t count = shape_.rows * shape_.columns;
    std::vector<ContextStatistics> contexts;
    const std::vector<std::size_t> owner = classes.merge_rare_classes();
    for (std::size_t z = 0; z < classes.n_classes(); ++z)
      contexts.push_back({.histogram = classes.histogram(z),
                          .number_bits = Words::word_bits,
                          .n_counted = classes.n_counted,
                          .count = count});
    std::deque<Histogram> side_histograms;
    const auto add_side = [&](Histogram histogram, int number_bits = 16) {
      contexts.push_back({.histogram = side_histograms.emplace_back(std::move(histogram)),
                          .number_bits = number_bits});
      return contexts.size() - 1;
    };
    std::size_t row_at = 0, column_at = 0;
    if (classes.by_row) row_at = add_side(histogram_of(classes.rows.scales, 1));
    if (classes.by_column) column_at = add_side(histogram_of(classes.columns, 1));
    std::size_t flags_at = 0;
    if (plan.model.decay_bits > 0) {
      flags_at = add_side(histogram_of(classes.rows.flags, 1));
      add_side(decay_step_histogram(plan.columns.decay_steps), Words::word_bits);
    }
    const std::size_t rank = std::size_t(low_rank_.rank);
    std::vector<std::size_t> component_at;
    for (std::size_t k = 0; k < rank; ++k) {
      Component& component = plan.model.components[k];
      component_at.push_back(
          add_side(factor_histogram(&low_rank_.left[k], shape_.rows, rank, component.left.stride)));
      add_side(factor_histogram(&low_rank_.right[k * shape_.columns], shape_.columns, 1,
                                component.right.stride));
    }
    Model& model = plan.model;
    model.table_log = std::clamp(int(std::bit_width(count)) - 6, min_table_log, table_log_limit);
    const Clustering clustering =
        cluster(kernels_, contexts, model.table_log, budget().table_limit, budget().reach);
    const auto context = [&](std::size_t i) {
      return context_of(contexts[i].table, contexts[i].shift);
    };
    const bool is_exact = classes.n_counted == count;
    model.tables.clear();
    for (const Counts& counts : clustering.tables)
      model.tables.push_back(
          normalized({counts.begin(), counts.end()}, model.table_log, !is_exact));
    model.offset = classes.offset;
    model.classes.clear();
    for (std::size_t z = 0; z < max_classes; ++z)
      model.classes.push_back(context(owner[z / classes.classes_per_histogram]));
    if (classes.by_row) model.row_scales = context(row_at);
    if (classes.by_column) model.column_scales = context(column_at);
    if (model.decay_bits > 0)
      model.flags = context(flags_at), model.decay_steps = context(flags_at + 1);
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
  DeltaBins<Words> bins_;
};

}  // namespace deltahub
