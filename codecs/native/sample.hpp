// A sample of a frame's differences, and what ways to make classes of them would cost.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "histograms.hpp"
#include "model.hpp"
#include "scales.hpp"

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
  // The offset puts the largest classes, but for a few words, at the upper end. How many are a few:
  // of the levels that high_levels() offers, the one with which the sample takes the fewest bits.
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
    if (least > most) return counted(option);
    Option best;
    for (const int level : high_levels(least, most)) {
      Option other = option;
      other.offset = max_classes - 1 - level;
      other = counted(other);
      if (best.bits == 0 || other.bits < best.bits) best = other;
    }
    return best;
  }

 private:
  struct Piece {
    std::size_t row, column, first, n;
    bool is_decayed;
  };

  // The option with what it takes.
  Option counted(Option option) {
    const std::size_t end = (*std::ranges::max_element(bins_) / 2u + 1) * 2;
    // Short counts and keys are sooner cleared and stay near; a large sample needs long ones.
    constexpr std::size_t short_end = std::size_t(1) << 16;
    const bool is_short = bins_.size() < short_end && max_classes / together_ * end < short_end;
    return is_short ? counted(option, end, short_) : counted(option, end, long_);
  }
  // What counting works in, kept from option to option.
  template <class Number>
  struct Counting {
    std::vector<Number> keys, counts;
  };
  // end: of the bins that occur.
  template <class Number>
  Option counted(Option option, std::size_t end, Counting<Number>& counting) const {
    const std::size_t n_words = bins_.size(), way = max_classes / together_ * end;
    counting.keys.resize(n_words);
    Number* const keys = counting.keys.data();
    const auto n_together = int(std::bit_width(together_)) - 1;
    for (std::size_t i = 0; i < n_words; ++i) {
      const auto level = std::int16_t(levels_[i] + option.offset);
      const auto z = std::clamp<std::int16_t>(level, 0, max_classes - 1);
      keys[i] = Number(Number(z >> n_together) * Number(end) + bins_[i]);
    }
    // A count that has just been stored is slow to load: two take turns.
    counting.counts.assign(2 * way, 0);
    Number* const counts = counting.counts.data();
    Number* const others = counts + way;
    for (std::size_t i = 0; i < n_words / 2 * 2; i += 2) ++counts[keys[i]], ++others[keys[i + 1]];
    if (n_words % 2 == 1) ++counts[keys[n_words - 1]];
    Histogram one(end);
    for (std::size_t begin = 0; begin < way; begin += end) {
      Number seen = 0;
      for (std::size_t j = 0; j < end; ++j) {
        const auto count = Number(counts[begin + j] + others[begin + j]);
        seen |= count;
        one[j] = count;
      }
      if (seen == 0) continue;
      std::size_t used = end;
      while ((one[used - 1] | one[used - 2]) == 0) used -= 2;
      option.bits += bits_alone(Bins(one).first(used), number_bits_);
      ++option.n_classes;
    }
    option.counted = n_words;
    return option;
  }

  // The highest level that is not above all but one in 512; and in 32 and 4 where that is lower by
  // far: some rows are then of another kind, as those that a vocabulary was extended by, whose base
  // is zero. They would drive all others into the lowest class. With some levels between, they may
  // have the highest for themselves.
  std::vector<int> high_levels(int least, int most) const {
    std::vector<std::uint32_t> seen(std::size_t(most - least) + 1);
    std::uint64_t total = 0;
    for (const Piece& piece : pieces_) {
      if (piece.is_decayed) continue;
      for (std::size_t j = 0; j < piece.n; ++j)
        ++seen[std::size_t(levels_[piece.first + j] - least)];
      total += piece.n;
    }
    std::vector<int> found;
    std::uint64_t above = 0;
    std::size_t level = seen.size();
    for (const std::uint64_t share : {512, 32, 4}) {
      while (level > 1 && (above + seen[level - 1]) * share < total) above += seen[--level];
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
  Counting<std::uint16_t> short_;
  Counting<std::uint32_t> long_;
};

}  // namespace deltahub
