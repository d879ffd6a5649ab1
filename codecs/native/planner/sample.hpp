// A sample of the differences of a frame, and the estimated cost of ways to make classes of them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "coder/histograms.hpp"
#include "fm_delta/model.hpp"
#include "planner/scales.hpp"

namespace deltahub {

struct RowAndColumnScales {
  ScaleSums::Scales rows, columns;
};

// The class of a word is scale + offset - 4 * exponent of its prediction, clamped. The class of a
// word in a weight-decay row does not depend on the exponent.
class Sample {
 public:
  // middle: see middle_exponent. classes_per_histogram: adjacent classes that are counted
  // together, which is faster; a power of two.
  Sample(int number_bits, int middle, std::size_t classes_per_histogram)
      : number_bits_(number_bits), middle_(middle), classes_per_histogram_(classes_per_histogram) {}

  // Memory for the bins and the exponents of a range of n words, which the caller fills.
  struct Buffers {
    std::uint16_t* bins;
    std::int16_t* exponents;
  };
  Buffers add(std::size_t row, std::size_t column, std::size_t n, bool is_weight_decay) {
    ranges_.push_back({row, column, bins_.size(), n, is_weight_decay});
    bins_.resize(bins_.size() + n);
    exponents_.resize(bins_.size());
    return {bins_.data() + ranges_.back().first, exponents_.data() + ranges_.back().first};
  }

  struct Option {
    bool by_row = false, by_column = false;
    int offset = 0;
    std::uint64_t bits = 0;       // cost of the sample, with a table for each class
    std::uint64_t n_counted = 0;  // words of the sample
    std::uint64_t n_classes = 0;
  };
  // Finds the best offset for these scales; call it when all words are added. An offset puts one
  // level into the highest class, together with the few words above it. The candidates are the
  // levels of top_level_candidates(); the best one is that with which the sample takes the fewest
  // bits.
  Option best_offset(const RowAndColumnScales& scales, bool by_row, bool by_column) {
    levels_.resize(bins_.size());
    std::int16_t min_level = scale_end, max_level = -scale_end;
    for (const Range& range : ranges_) {
      const auto from_row = std::int16_t(by_row ? scales.rows.deviations[range.row] : 0);
      const std::int16_t* const exponents = exponents_.data() + range.first;
      std::int16_t* const levels = levels_.data() + range.first;
      if (range.is_weight_decay) {
        std::fill_n(levels, range.n, std::int16_t(from_row - 4 * middle_));
        continue;
      }
      for (std::size_t j = 0; j < range.n; ++j)
        levels[j] = std::int16_t(from_row - 4 * exponents[j]);
      if (by_column) {
        const std::int16_t* const columns = scales.columns.deviations.data() + range.column;
        for (std::size_t j = 0; j < range.n; ++j) levels[j] = std::int16_t(levels[j] + columns[j]);
      }
      for (std::size_t j = 0; j < range.n; ++j)
        min_level = std::min(min_level, levels[j]), max_level = std::max(max_level, levels[j]);
    }
    const Option blank{.by_row = by_row, .by_column = by_column};
    std::vector<Option> options;
    if (min_level > max_level) {
      options.push_back(blank);
    } else {
      for (const int level : top_level_candidates(min_level, max_level))
        options.emplace_back(blank).offset = max_classes - 1 - level;
    }
    count(options);
    Option best;
    for (const Option& option : options)
      if (best.bits == 0 || option.bits < best.bits) best = option;
    return best;
  }

 private:
  struct Range {
    std::size_t row, column, first, n;
    bool is_weight_decay;
  };

  // Sets the costs of options, which differ only in their offsets.
  void count(std::vector<Option>& options) {
    if (pairs_before_.empty()) compact_bins();
    std::vector<Option*> remaining, compatible;
    for (Option& option : options) {
      option.n_counted = bins_.size();
      remaining.push_back(&option);
    }
    std::ranges::sort(remaining, {}, &Option::offset);
    while (!remaining.empty()) {
      compatible.clear();
      std::erase_if(remaining, [&, first = remaining.front()->offset](Option* option) {
        const int away = option->offset - first;
        if (away % int(classes_per_histogram_) != 0 || away > max_classes) return false;
        compatible.push_back(option);
        return true;
      });
      const std::size_t n_groups =
          std::size_t(max_classes + compatible.back()->offset - compatible.front()->offset) /
          classes_per_histogram_;
      // 16-bit counts and keys are cleared faster and stay in the cache; a large sample needs 32
      // bits.
      constexpr std::size_t short_end = std::size_t(1) << 16;
      const bool is_short = bins_.size() < short_end && n_groups * end() < short_end;
      is_short ? count(compatible, n_groups, short_) : count(compatible, n_groups, long_);
    }
  }

  // Renumbers the bins so that only bins that occur have numbers: few do, and histograms get short.
  void compact_bins() {
    const std::size_t n = bins_.size(), n_pairs = n_bins(number_bits_) / 2;
    pairs_before_.assign(n_pairs + 1, 0);
    std::uint16_t* const bins = bins_.data();
    std::uint16_t* const pairs_before = pairs_before_.data();
    for (std::size_t i = 0; i < n; ++i) pairs_before[bins[i] / 2 + 1] = 1;
    for (std::size_t pair = 0; pair < n_pairs; ++pair)
      if (pairs_before[pair + 1] == 1) used_pairs_.push_back(std::uint16_t(pair));
    std::partial_sum(pairs_before_.begin(), pairs_before_.end(), pairs_before_.begin());
    for (std::size_t i = 0; i < n; ++i)
      bins[i] = std::uint16_t(2 * pairs_before[bins[i] / 2] + bins[i] % 2);
  }
  std::size_t end() const { return 2 * used_pairs_.size(); }

  // Maps all bins, up to the last one in a histogram, to the bins that occur: see
  // CumulativeHistogram.
  struct UsedBins {
    const std::uint16_t* pairs_before;
    std::size_t n_pairs;
    std::size_t end() const { return n_pairs; }
    std::size_t before(std::size_t pair) const { return pairs_before[pair]; }
  };
  std::uint64_t bits_of(const std::uint32_t* histogram) const {
    const Bins used = trimmed({histogram, end()});
    if (used.empty()) return 0;
    const UsedBins used_bins{pairs_before_.data(),
                             used_pairs_[used.size() / 2 - 1] + std::size_t(1)};
    return bits_with_own_table(CumulativeHistogram(used, used_bins), number_bits_);
  }
  // The bits of groups [first, last) as one class.
  std::uint64_t merged_bits(std::size_t first, std::size_t last) {
    const std::size_t end = this->end();
    const auto group = [&](std::size_t g) { return &groups_[g * end]; };
    while (first < last && group_bits_[first] == 0) ++first;
    while (first < last && group_bits_[last - 1] == 0) --last;
    if (last - first <= 1) return first < last ? group_bits_[first] : 0;
    merged_.assign(group(first), group(first) + end);
    for (std::size_t g = first + 1; g < last; ++g) {
      if (group_bits_[g] == 0) continue;
      for (std::size_t j = 0; j < end; ++j) merged_[j] += group(g)[j];
    }
    return bits_of(merged_.data());
  }

  // Buffers of `count`, reused from call to call.
  template <class Number>
  struct CountBuffers {
    std::vector<Number> keys, counts;
  };
  // Counts once for several options whose offsets differ by multiples of `classes_per_histogram_`,
  // in ascending order. Their classes then have the same boundaries, so that levels are counted in
  // groups. For each option, the groups at and below its lowest class are one class, as are those
  // from its highest one.
  template <class Number>
  void count(const std::vector<Option*>& options, std::size_t n_groups,
             CountBuffers<Number>& buffers) {
    const std::size_t n_words = bins_.size(), end = this->end(), n_counts = n_groups * end;
    const int offset = options.back()->offset;
    const auto last = std::int16_t(n_groups * classes_per_histogram_ - 1);
    const auto log2_per_histogram = int(std::bit_width(classes_per_histogram_)) - 1;
    buffers.keys.resize(n_words);
    Number* const keys = buffers.keys.data();
    for (std::size_t i = 0; i < n_words; ++i) {
      const auto level = std::int16_t(levels_[i] + offset);
      const auto z = std::clamp<std::int16_t>(level, 0, last);
      keys[i] = Number(Number(z >> log2_per_histogram) * Number(end) + bins_[i]);
    }
    // Adding to a count that was stored just before stalls, so that two tables are used in turn.
    buffers.counts.assign(2 * n_counts, 0);
    Number* const counts = buffers.counts.data();
    Number* const odd_counts = counts + n_counts;
    for (std::size_t i = 0; i < n_words / 2 * 2; i += 2)
      ++counts[keys[i]], ++odd_counts[keys[i + 1]];
    if (n_words % 2 == 1) ++counts[keys[n_words - 1]];
    groups_.resize(n_counts);
    for (std::size_t i = 0; i < n_counts; ++i) groups_[i] = Number(counts[i] + odd_counts[i]);
    group_bits_.clear();
    for (std::size_t g = 0; g < n_groups; ++g) group_bits_.push_back(bits_of(&groups_[g * end]));
    for (Option* const option : options) {
      const std::size_t lowest = std::size_t(offset - option->offset) / classes_per_histogram_;
      const std::size_t highest = lowest + max_classes / classes_per_histogram_ - 1;
      const auto add = [&](std::uint64_t bits) {
        option->bits += bits;
        option->n_classes += bits > 0;
      };
      add(merged_bits(0, lowest + 1));
      for (std::size_t g = lowest + 1; g < highest; ++g) add(group_bits_[g]);
      add(merged_bits(highest, n_groups));
    }
  }

  // Candidates for the level of the highest class: the level that 1/512 of the words reach, and the
  // levels that 1/32 and 1/4 reach if those are far lower. In that case some rows differ from all
  // others, as tokens added to a vocabulary do, whose base is zero; they would push the other rows
  // into the lowest class. With candidates 8 and 16 above such a level, these rows can have the
  // highest classes for themselves.
  std::vector<int> top_level_candidates(int min_level, int max_level) const {
    // Adding to a count that was stored just before stalls, so that four tables are used in turn.
    const auto end = std::size_t(max_level - min_level) + 1;
    std::vector<std::uint32_t> counts(4 * end);
    std::uint32_t* const tables[] = {counts.data(), &counts[end], &counts[2 * end],
                                     &counts[3 * end]};
    std::uint64_t total = 0;
    for (const Range& range : ranges_) {
      if (range.is_weight_decay) continue;
      const std::int16_t* const levels = levels_.data() + range.first;
      std::size_t j = 0;
      for (; j + 4 <= range.n; j += 4)
        for (std::size_t table = 0; table < 4; ++table)
          ++tables[table][levels[j + table] - min_level];
      for (; j < range.n; ++j) ++tables[0][levels[j] - min_level];
      total += range.n;
    }
    const auto count_of = [&](std::size_t level) {
      std::uint64_t all = 0;
      for (const std::uint32_t* const table : tables) all += table[level];
      return all;
    };
    std::vector<int> candidates;
    std::uint64_t above = 0;
    std::size_t level = end;
    for (const std::uint64_t share : {512, 32, 4}) {
      while (level > 1 && (above + count_of(level - 1)) * share < total) above += count_of(--level);
      const int candidate = int(level) - 1 + min_level;
      if (candidates.empty()) {
        candidates.push_back(candidate);
      } else if (candidates.back() - candidate > far_below) {
        for (const int distance : {16, 8, 0}) candidates.push_back(candidate + distance);
      }
    }
    return candidates;
  }
  static constexpr int far_below = 24;

  int number_bits_, middle_;
  std::size_t classes_per_histogram_;
  std::vector<Range> ranges_;
  std::vector<std::uint16_t> bins_;
  std::vector<std::int16_t> exponents_;
  std::vector<std::int16_t> levels_;  // cannot overflow: scales are below 2048
  // For each pair of bins the number of pairs below it that occur; and the pairs that occur.
  std::vector<std::uint16_t> pairs_before_, used_pairs_;
  CountBuffers<std::uint16_t> short_;
  CountBuffers<std::uint32_t> long_;
  std::vector<std::uint32_t> groups_, merged_;  // histograms
  std::vector<std::uint64_t> group_bits_;
};

}  // namespace deltahub
