// A sample of a frame's differences, and what ways to make classes of them would cost.
#pragma once

#include <algorithm>
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
  // middle: see middle_exponent. together: classes that are counted as one, which is sooner done.
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
  Option counted(Option option) const {
    const std::size_t end = (*std::ranges::max_element(bins_) / 2u + 1) * 2;
    const std::size_t n_classes = max_classes / together_;
    // A count that has just been stored is slow to load: four take turns.
    constexpr std::size_t n_ways = 4;
    const std::size_t way = n_classes * end;
    Histogram classes(n_ways * way);
    std::uint32_t* rows[max_classes];
    for (std::size_t z = 0; z < max_classes; ++z) rows[z] = &classes[z / together_ * end];
    for (std::size_t i = 0; i < bins_.size(); ++i) {
      const int z = std::clamp(levels_[i] + option.offset, 0, max_classes - 1);
      ++rows[z][i % n_ways * way + bins_[i]];
    }
    for (std::size_t i = 1; i < n_ways; ++i)
      for (std::size_t j = 0; j < way; ++j) classes[j] += classes[i * way + j];
    for (std::size_t z = 0; z < n_classes; ++z) {
      const Bins one = Bins(classes).subspan(z * end, end);
      const std::uint64_t bits = bits_alone(one, number_bits_);
      option.bits += bits;
      option.n_classes += bits > 0;
    }
    option.counted = bins_.size();
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
};

}  // namespace deltahub
