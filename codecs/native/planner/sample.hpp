// A sample of a frame's differences, and what ways to make classes of them would cost.
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

// A class is scale + offset - 4 * exponent of what is predicted; the class of a row that decayed is
// the size of its differences itself, whatever the exponent.
class Sample {
 public:
  // middle: see middle_exponent. together: classes that are counted as one, which is sooner done; a
  // power of two.
  Sample(int number_bits, int middle, std::size_t together)
      : number_bits_(number_bits), middle_(middle), together_(together) {}

  // Room for the bins and the exponents of n words of a row, which follow one another.
  struct Room {
    std::uint16_t* bins;
    std::int16_t* exponents;
  };
  Room add(std::size_t row, std::size_t column, std::size_t n, bool is_decayed) {
    pieces_.push_back({row, column, bins_.size(), n, is_decayed});
    bins_.resize(bins_.size() + n);
    exponents_.resize(bins_.size());
    return {bins_.data() + pieces_.back().first, exponents_.data() + pieces_.back().first};
  }

  struct Option {
    bool by_row = false, by_column = false;
    int offset = 0;
    std::uint64_t bits = 0;     // of the sample, with a table for each class
    std::uint64_t counted = 0;  // the sample's words
    std::uint64_t n_classes = 0;
  };
  // Once all words are added. The offset puts the largest classes, but for a few words, at the upper
  // end. How many are a few: of the levels that high_levels() offers, the one with which the sample
  // takes the fewest bits.
  Option tried(const RowAndColumnScales& scales, bool by_row, bool by_column) {
    levels_.resize(bins_.size());
    std::int16_t least = scale_end, most = -scale_end;
    for (const Piece& piece : pieces_) {
      const auto from_row = std::int16_t(by_row ? scales.rows.around[piece.row] : 0);
      const std::int16_t* const exponents = exponents_.data() + piece.first;
      std::int16_t* const levels = levels_.data() + piece.first;
      if (piece.is_decayed) {
        std::fill_n(levels, piece.n, std::int16_t(from_row - 4 * middle_));
        continue;
      }
      for (std::size_t j = 0; j < piece.n; ++j)
        levels[j] = std::int16_t(from_row - 4 * exponents[j]);
      if (by_column) {
        const std::int16_t* const columns = scales.columns.around.data() + piece.column;
        for (std::size_t j = 0; j < piece.n; ++j) levels[j] = std::int16_t(levels[j] + columns[j]);
      }
      for (std::size_t j = 0; j < piece.n; ++j)
        least = std::min(least, levels[j]), most = std::max(most, levels[j]);
    }
    const Option option{.by_row = by_row, .by_column = by_column};
    std::vector<Option> others;
    if (least > most) {
      others.push_back(option);
    } else {
      for (const int level : high_levels(least, most))
        others.emplace_back(option).offset = max_classes - 1 - level;
    }
    count(others);
    Option best;
    for (const Option& other : others)
      if (best.bits == 0 || other.bits < best.bits) best = other;
    return best;
  }

 private:
  struct Piece {
    std::size_t row, column, first, n;
    bool is_decayed;
  };

  // What the options take that differ in their offsets.
  void count(std::vector<Option>& options) {
    if (ranks_.empty()) rank_bins();
    std::vector<Option*> left, alike;
    for (Option& option : options) {
      option.counted = bins_.size();
      left.push_back(&option);
    }
    std::ranges::sort(left, {}, &Option::offset);
    while (!left.empty()) {
      alike.clear();
      std::erase_if(left, [&, first = left.front()->offset](Option* option) {
        const int away = option->offset - first;
        if (away % int(together_) != 0 || away > max_classes) return false;
        alike.push_back(option);
        return true;
      });
      const std::size_t n_groups =
          std::size_t(max_classes + alike.back()->offset - alike.front()->offset) / together_;
      // Short counts and keys are sooner cleared and stay near; a large sample needs long ones.
      constexpr std::size_t short_end = std::size_t(1) << 16;
      const bool is_short = bins_.size() < short_end && n_groups * end() < short_end;
      is_short ? count(alike, n_groups, short_) : count(alike, n_groups, long_);
    }
  }

  // Of the bins few occur: numbers them, so that counts lie near each other.
  void rank_bins() {
    const std::size_t n = bins_.size(), n_pairs = n_bins(number_bits_) / 2;
    ranks_.assign(n_pairs + 1, 0);
    std::uint16_t* const bins = bins_.data();
    std::uint16_t* const ranks = ranks_.data();
    for (std::size_t i = 0; i < n; ++i) ranks[bins[i] / 2 + 1] = 1;
    for (std::size_t pair = 0; pair < n_pairs; ++pair)
      if (ranks[pair + 1] == 1) pairs_.push_back(std::uint16_t(pair));
    std::partial_sum(ranks_.begin(), ranks_.end(), ranks_.begin());
    for (std::size_t i = 0; i < n; ++i)
      bins[i] = std::uint16_t(2 * ranks[bins[i] / 2] + bins[i] % 2);
  }
  std::size_t end() const { return 2 * pairs_.size(); }

  // The bins that occur, up to the last one of a histogram.
  struct RankedBins {
    const std::uint16_t* ranks;
    std::size_t n_pairs;
    std::size_t end() const { return n_pairs; }
    std::size_t before(std::size_t pair) const { return ranks[pair]; }
  };
  std::uint64_t bits_of(const std::uint32_t* histogram) const {
    const Bins used = trimmed({histogram, end()});
    if (used.empty()) return 0;
    const RankedBins places{ranks_.data(), pairs_[used.size() / 2 - 1] + std::size_t(1)};
    return bits_with_own_table(CumulativeHistogram(used, places), number_bits_);
  }
  // What the words of groups [first, last) take as one class.
  std::uint64_t bits_together(std::size_t first, std::size_t last) {
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

  // What counting works in, kept from option to option.
  template <class Number>
  struct Counting {
    std::vector<Number> keys, counts;
  };
  // Options whose offsets lie whole classes below the last one's. What is one class with one of them
  // is one with all of them, but for what falls below the lowest class or above the highest one: so
  // levels are counted once, in groups.
  template <class Number>
  void count(const std::vector<Option*>& options, std::size_t n_groups,
             Counting<Number>& counting) {
    const std::size_t n_words = bins_.size(), end = this->end(), way = n_groups * end;
    const int offset = options.back()->offset;
    const auto last = std::int16_t(n_groups * together_ - 1);
    const auto n_together = int(std::bit_width(together_)) - 1;
    counting.keys.resize(n_words);
    Number* const keys = counting.keys.data();
    for (std::size_t i = 0; i < n_words; ++i) {
      const auto level = std::int16_t(levels_[i] + offset);
      const auto z = std::clamp<std::int16_t>(level, 0, last);
      keys[i] = Number(Number(z >> n_together) * Number(end) + bins_[i]);
    }
    // A count that has just been stored is slow to load: two take turns.
    counting.counts.assign(2 * way, 0);
    Number* const counts = counting.counts.data();
    Number* const others = counts + way;
    for (std::size_t i = 0; i < n_words / 2 * 2; i += 2) ++counts[keys[i]], ++others[keys[i + 1]];
    if (n_words % 2 == 1) ++counts[keys[n_words - 1]];
    groups_.resize(way);
    for (std::size_t i = 0; i < way; ++i) groups_[i] = Number(counts[i] + others[i]);
    group_bits_.clear();
    for (std::size_t g = 0; g < n_groups; ++g) group_bits_.push_back(bits_of(&groups_[g * end]));
    for (Option* const option : options) {
      const std::size_t lowest = std::size_t(offset - option->offset) / together_;
      const std::size_t highest = lowest + max_classes / together_ - 1;
      const auto add = [&](std::uint64_t more) {
        option->bits += more;
        option->n_classes += more > 0;
      };
      add(bits_together(0, lowest + 1));
      for (std::size_t g = lowest + 1; g < highest; ++g) add(group_bits_[g]);
      add(bits_together(highest, n_groups));
    }
  }

  // The highest level that is not above all but one in 512; and in 32 and 4 where that is lower by
  // far: some rows are then of another kind, as those that a vocabulary was extended by, whose base
  // is zero. They would drive all others into the lowest class. With some levels between, they may
  // have the highest for themselves.
  std::vector<int> high_levels(int least, int most) const {
    // A count that has just been stored is slow to load: four take turns.
    const auto end = std::size_t(most - least) + 1;
    std::vector<std::uint32_t> counts(4 * end);
    std::uint32_t* const turns[] = {counts.data(), &counts[end], &counts[2 * end],
                                    &counts[3 * end]};
    std::uint64_t total = 0;
    for (const Piece& piece : pieces_) {
      if (piece.is_decayed) continue;
      const std::int16_t* const levels = levels_.data() + piece.first;
      std::size_t j = 0;
      for (; j + 4 <= piece.n; j += 4)
        for (std::size_t turn = 0; turn < 4; ++turn) ++turns[turn][levels[j + turn] - least];
      for (; j < piece.n; ++j) ++turns[0][levels[j] - least];
      total += piece.n;
    }
    const auto seen = [&](std::size_t level) {
      std::uint64_t all = 0;
      for (const std::uint32_t* const turn : turns) all += turn[level];
      return all;
    };
    std::vector<int> found;
    std::uint64_t above = 0;
    std::size_t level = end;
    for (const std::uint64_t share : {512, 32, 4}) {
      while (level > 1 && (above + seen(level - 1)) * share < total) above += seen(--level);
      const int here = int(level) - 1 + least;
      if (found.empty()) {
        found.push_back(here);
      } else if (found.back() - here > far_below) {
        for (const int between : {16, 8, 0}) found.push_back(here + between);
      }
    }
    return found;
  }
  static constexpr int far_below = 24;

  int number_bits_, middle_;
  std::size_t together_;
  std::vector<Piece> pieces_;
  std::vector<std::uint16_t> bins_;
  std::vector<std::int16_t> exponents_;
  std::vector<std::int16_t> levels_;  // scales are below 2048: there is room
  // Of each pair of bins, how many occur below it; and those that occur.
  std::vector<std::uint16_t> ranks_, pairs_;
  Counting<std::uint16_t> short_;
  Counting<std::uint32_t> long_;
  std::vector<std::uint32_t> groups_, merged_;  // histograms
  std::vector<std::uint64_t> group_bits_;
};

}  // namespace deltahub
