// Size estimates: the entropies of residuals after a prediction and of its factors, without the
// tables of an encoder. Not part of the format.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/words.hpp"
#include "fm_delta/plan.hpp"
#include "fm_delta/right_factor.hpp"
#include "kernels/kernels.hpp"
#include "kernels/low_rank/estimate_classes.hpp"
#include "kernels/low_rank/kernels.hpp"
#include "low_rank/int16_rows.hpp"

namespace deltahub {

// log2 of a count, from a table for small counts, because most are small.
inline double log2_of(std::uint32_t count) {
  static constexpr std::size_t n_known = 1024;
  static const std::array<double, n_known> known = [] {
    std::array<double, n_known> logarithms{};
    for (std::size_t i = 1; i < n_known; ++i) logarithms[i] = std::log2(double(i));
    return logarithms;
  }();
  return count < n_known ? known[count] : std::log2(double(count));
}

// Counts of symbols by class.
class SymbolCounts {
 public:
  explicit SymbolCounts(std::size_t n_classes) : counts_(n_classes * n_estimate_symbols) {}

  // keys: class * n_estimate_symbols + symbol.
  void add(const std::uint16_t* keys, std::size_t n) {
    for (std::size_t j = 0; j < n; ++j) ++counts_[keys[j]][j % n_ways];
  }

  // The entropy with one distribution for each class, plus the cost for an adaptive code to learn
  // the distributions, plus the symbols' raw bits.
  double bits() const {
    double bits = 0;
    for (std::size_t begin = 0; begin < counts_.size(); begin += n_estimate_symbols) {
      double of_class = 0, n_symbols = 0;
      for (std::size_t symbol = 0; symbol < n_estimate_symbols; ++symbol) {
        const Ways& ways = counts_[begin + symbol];
        const double count = ways[0] + ways[1];
        if (count == 0) continue;
        of_class += count, n_symbols += 1;
        bits += count * (estimate_width(symbol) - log2_of(ways[0] + ways[1]));
      }
      if (of_class == 0) continue;
      bits += of_class * std::log2(of_class);
      bits += std::min(std::log2(of_class + 1) * n_symbols / 2, 4 * of_class);
    }
    return bits;
  }

 private:
  // Two counters take turns, because it is slow to load a counter that was just stored.
  static constexpr std::size_t n_ways = 2;
  using Ways = std::array<std::uint32_t, n_ways>;
  std::vector<Ways> counts_;
};

// The factors that predict sampled rows of words: left is rows x rank, right rank x columns.
struct FactorRows {
  std::size_t rank = 0;
  int floor = 1;
  bool is_rounded = false;  // the product, before it is added
  const std::int16_t* left = nullptr;
  const std::int16_t* right = nullptr;
};

// The entropy of a few rows of words after a prediction.
template <class Words>
class ResidualEntropy {
 public:
  using Word = typename Words::Word;

  ResidualEntropy(const Kernels& kernels, const SearchKernels& search, std::size_t columns)
      : kernels_(kernels), search_(search), columns_(columns), predicted_(columns),
        deltas_(columns), sizes_(columns), keys_(columns), products_(4 * columns),
        counts_(n_estimate_classes) {}

  // source[i], base[i]: the words of row i.
  template <class Rows>
  double bits(const Rows& source, const Rows& base, std::size_t rows, const FactorRows& factors) {
    const std::size_t rank = factors.rank, filled = padded_rank(kernels_, rank);
    const RightFactor right(kernels_, {factors.right, factors.right + rank * columns_}, rank,
                            columns_);
    std::vector<std::int16_t> left(4 * filled);
    for (std::size_t row = 0; row < rows; ++row) {
      if (rank == 0) {
        add(source[row], base[row]);
        continue;
      }
      if (row % 4 == 0) {
        const std::size_t n_rows = std::min<std::size_t>(4, rows - row);
        for (std::size_t i = 0; i < n_rows; ++i)
          std::copy_n(&factors.left[(row + i) * rank], rank, &left[i * filled]);
        right.multiply(kernels_, left.data(), n_rows, 0, columns_, products_.data());
        if (factors.is_rounded)
          kernels_.round(products_.data(), n_rows * columns_, Words::mantissa_bits + 1);
      }
      auto* const predicted = reinterpret_cast<std::uint8_t*>(predicted_.data());
      kernels_.predict[kind_of<Words>](base[row], &products_[row % 4 * columns_], columns_,
                                       factors.floor, predicted);
      add(source[row], predicted);
    }
    return counts_.bits();
  }

 private:
  void add(const std::uint8_t* source, const std::uint8_t* predicted) {
    auto* const deltas = reinterpret_cast<std::uint8_t*>(deltas_.data());
    const double sum =
        double(kernels_.sizes[kind_of<Words>](source, predicted, columns_, true, sizes_.data()));
    const double mean = std::max(sum / double(columns_), 0x1p-80);
    const double level = 2 * (std::log2(mean) + middle_exponent<Words>);
    kernels_.deltas[kind_of<Words>](source, predicted, columns_, deltas);
    search_.keys[kind_of<Words>](deltas, predicted, columns_, std::int32_t(std::lrint(level)),
                                 keys_.data());
    counts_.add(keys_.data(), columns_);
  }

  const Kernels& kernels_;
  const SearchKernels& search_;
  std::size_t columns_;
  std::vector<Word> predicted_, deltas_;
  std::vector<float> sizes_;
  std::vector<std::uint16_t> keys_;
  std::vector<std::int32_t> products_;
  SymbolCounts counts_;
};

// The estimated bits of a factor: values is rows x rank, and each component has its own
// distribution. Trailing zero bits that all values of a component share cost nothing.
inline double factor_bits(const SearchKernels& search, const std::int16_t* values, std::size_t rows,
                          std::size_t rank) {
  std::vector<std::uint16_t> digits(rank), keys(rank);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t k = 0; k < rank; ++k) digits[k] |= std::uint16_t(values[i * rank + k]);
  std::vector<std::int32_t> shifts;
  for (const std::uint16_t all : digits) shifts.push_back(all ? std::countr_zero(all) : 0);
  SymbolCounts counts(rank);
  for (std::size_t i = 0; i < rows; ++i) {
    search.factor_keys(values + i * rank, shifts.data(), rank, keys.data());
    counts.add(keys.data(), rank);
  }
  return counts.bits();
}

// The estimated size of a frame with a product, from some of its rows.
template <class Words>
class SizeEstimate {
 public:
  // n_words: about how many words are sampled. n_factor_rows: how many rows of factors are sampled.
  SizeEstimate(const Kernels& kernels, const SearchKernels& search, WordRows source, WordRows base,
               std::size_t n_words, std::size_t n_factor_rows = 64)
      : kernels_(kernels), search_(search), source_(source), base_(base),
        n_factor_rows_(n_factor_rows),
        sampled_rows_(
            some_rows(std::clamp<std::size_t>(n_words / source.columns, n_few, n_factor_rows))) {}

  // The bits of all words without a product.
  double without() {
    if (!without_) without_ = bits_of(sampled_rows_, {});
    return *without_;
  }
  // The bits of all words with the product, plus those of its factors. may_be_rounded: also sets
  // found.is_rounded, to whichever takes fewer bits.
  double with(LowRank& found, bool may_be_rounded) const {
    const auto bits = [&](const std::vector<std::size_t>& rows, bool is_rounded) {
      const std::vector<std::int16_t> left = left_of(found, rows);
      return bits_of(rows, {std::size_t(found.rank), found.floor, is_rounded, left.data(),
                            found.right.data()});
    };
    if (may_be_rounded) {
      const std::vector<std::size_t> few = some_rows(n_few);
      found.is_rounded = bits(few, true) < bits(few, false);
    }
    return bits(sampled_rows_, found.is_rounded) + factors(found);
  }
  double factors(const LowRank& found) const {
    const std::vector<std::size_t> rows = evenly(n_factor_rows_, source_.rows);
    const auto rank = std::size_t(found.rank);
    const double of_left = factor_bits(search_, left_of(found, rows).data(), rows.size(), rank);
    if (n_factor_rows_ <= 64)
      return of_left * double(source_.rows + source_.columns) / double(rows.size());
    const std::vector<std::size_t> columns = evenly(n_factor_rows_, source_.columns);
    std::vector<std::int16_t> right;
    right.reserve(columns.size() * rank);
    for (const std::size_t column : columns)
      for (std::size_t k = 0; k < rank; ++k)
        right.push_back(found.right[k * source_.columns + column]);
    const double of_right = factor_bits(search_, right.data(), columns.size(), rank);
    return of_left * double(source_.rows) / double(rows.size()) +
           of_right * double(source_.columns) / double(columns.size());
  }

 private:
  static constexpr std::size_t n_few = 4;  // rows that decide whether products are rounded

  // At most `most` rows, at equal distances.
  std::vector<std::size_t> some_rows(std::size_t most) const { return evenly(most, source_.rows); }
  static std::vector<std::size_t> evenly(std::size_t most, std::size_t all) {
    const std::size_t n = std::min(most, all);
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < n; ++i)
      found.push_back(i * (all - 1) / std::max<std::size_t>(n - 1, 1));
    return found;
  }
  static std::vector<std::int16_t> left_of(const LowRank& found,
                                           const std::vector<std::size_t>& rows) {
    const auto rank = std::size_t(found.rank);
    std::vector<std::int16_t> left;
    left.reserve(rows.size() * rank);
    for (const std::size_t row : rows)
      left.insert(left.end(), &found.left[row * rank], &found.left[row * rank] + rank);
    return left;
  }
  double bits_of(const std::vector<std::size_t>& rows, const FactorRows& factors) const {
    std::vector<const std::uint8_t*> source, base;
    for (const std::size_t row : rows) source.push_back(source_[row]), base.push_back(base_[row]);
    ResidualEntropy<Words> entropy(kernels_, search_, source_.columns);
    return entropy.bits(source, base, rows.size(), factors) * double(source_.rows) /
           double(rows.size());
  }

  const Kernels& kernels_;
  const SearchKernels& search_;
  WordRows source_, base_;
  std::size_t n_factor_rows_;
  std::vector<std::size_t> sampled_rows_;
  std::optional<double> without_;
};

}  // namespace deltahub
