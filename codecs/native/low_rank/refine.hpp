// Passes that refine what was found of a merged adapter: its words were rounded, fine ones by less than
// coarse ones, so that fine ones tell more of the product. Not part of the format.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/words.hpp"
#include "kernels/low_rank/kernels.hpp"
#include "low_rank/factors.hpp"
#include "low_rank/int16_rows.hpp"

namespace deltahub {

// A product of thin floats as integers, a few rows at a time.
class IntegerProduct {
 public:
  IntegerProduct(const SearchKernels& search, std::size_t columns, std::size_t n_directions)
      : n(n_directions), search_(search), columns_(columns), wide_((columns + 31) / 32 * 32) {}

  // right: columns x n, of which `rank` count.
  void set_right(const UnsetNumbers<float>& right, std::size_t rank) {
    n_pairs_ = (rank + 1) / 2;
    double longest = 0;
    for (std::size_t j = 0; j < columns_; ++j)
      longest = std::max(longest, search_.energy(&right[j * n], n));
    scale_ = longest > 0 ? most / std::sqrt(longest) : 0;
    UnsetNumbers<std::int16_t> numbers(columns_ * n);
    search_.quantize(right.data(), numbers.size(), float(scale_), numbers.data());
    pairs_.assign(n_pairs_ * 2 * wide_, 0);
    for (std::size_t j = 0; j < columns_; ++j)
      for (std::size_t l = 0; l < 2 * n_pairs_; ++l)
        pairs_[(l / 2 * wide_ + j) * 2 + l % 2] = numbers[j * n + l];
  }
  // left: the first of so many rows of n floats.
  void multiply(const float* left, std::size_t n_rows) {
    numbers_.resize(n_rows * 2 * n_pairs_), units_.resize(n_rows);
    products_.resize(n_rows * wide_);
    for (std::size_t i = 0; i < n_rows; ++i) {
      const double length = std::sqrt(search_.energy(left + i * n, n));
      const double scale = length > 0 ? most / length : 0;
      units_[i] = scale * scale_ > 0 ? float(1 / (scale * scale_)) : 0;
      search_.quantize(left + i * n, 2 * n_pairs_, float(scale), &numbers_[i * 2 * n_pairs_]);
    }
    search_.multiply_integers(numbers_.data(), n_rows, n_pairs_, pairs_.data(), wide_,
                              products_.data());
  }
  const std::int32_t* products(std::size_t i) const { return &products_[i * wide_]; }
  float unit(std::size_t i) const { return units_[i]; }

 private:
  static constexpr double most = 32767;  // as long as rows are: sums of their products fit 31 bits

  std::size_t n;
  const SearchKernels& search_;
  std::size_t columns_, wide_, n_pairs_ = 0;
  double scale_ = 0;
  UnsetNumbers<std::int16_t> pairs_, numbers_;
  UnsetNumbers<float> units_;
  UnsetNumbers<std::int32_t> products_;
};

// Weighted least squares, one factor after the other, each word by how fine it is. A row's system of
// normal equations is not solved: its squares are taken for those that all words have, times the sum of
// the row's weights, which they are but for a part that a next pass asks for again.
template <class Words>
class RefinementPasses {
 public:
  // found: of the rows and columns of source and base.
  RefinementPasses(const SearchKernels& search, WordRows source, WordRows base, IntegerRows<Words>& part,
             Components<float>& found)
      : n(found.n), search_(search), source_(source), base_(base), part_(part), found_(found),
        product_(search, source.columns, found.n), weights_(source.columns),
        left_(source.rows * n), along_(source.columns * n) {}

  // Both factors once, of so many components; all others become nothing. spread: of the weights, as
  // UlpShares has it. False where that gives no numbers; `found` is worthless then.
  bool run(const AskedRule& rule, std::size_t rank, double spread) {
    rank_ = rank;
    // Of words that are content nearly nothing is left.
    if (rule.is_inside) spread *= 4;
    const std::size_t rows = source_.rows, columns = source_.columns;
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t k = 0; k < n; ++k)
        left_[i * n + k] = k < rank_ ? found_.left[i * n + k] * float(found_.strengths[k]) : 0;
    for (std::size_t j = 0; j < columns; ++j)
      for (std::size_t k = 0; k < n; ++k)
        along_[j * n + k] = k < rank_ ? found_.right[j * n + k] / float(found_.strengths[k]) : 0;
    product_.set_right(along_, rank_);
    part_.set_basis(along_.data());
    looked_.resize(n * most_together());
    for_each_part(rule, [&](std::size_t first, std::size_t n_rows) {
      part_.multiply(looked_.data());
      for (std::size_t i = 0; i < n_rows; ++i)
        move(&left_[(first + i) * n], &looked_[i * n], columns, row_weights_[i], spread);
    });
    const ThinProducts<float> thin(search_, n);
    std::vector<double> squares = thin.squares(left_);
    const double trace = thin.trace(squares);
    if (!(trace > no_energy) || !std::isfinite(trace)) return false;
    UnsetNumbers<float> turn(n * n), core_turn, products(n * n);
    for (double& each : squares) each /= trace;  // which may be beyond floats
    std::ranges::transform(squares, products.begin(), [](double each) { return float(each); });
    search_.whiten(squares.data(), n, turn.data());
    thin.multiply(products, turn, core_turn);
    const auto length = float(std::sqrt(trace));
    for (float& each : turn) each /= length;
    for (float& each : core_turn) each *= length;
    UnsetNumbers<float> unit, core;  // left_ along_^T = unit core^T
    thin.multiply(left_, turn, unit);
    thin.multiply(along_, core_turn, core);
    std::ranges::fill(weights_, 0u);  // until here nobody reads them
    part_.clear_sums();
    for_each_part(rule, [&](std::size_t first, std::size_t) {
      part_.add_turned(&unit[first * n]);
    });
    const UnsetNumbers<float> pulls = part_.along();
    for (std::size_t j = 0; j < columns; ++j)
      move(&core[j * n], &pulls[j * n], rows, weights_[j], spread);
    return found_.settle(search_, left_, turn, core);
  }

 private:
  static constexpr std::size_t n_at_once = 8;

  std::size_t most_together() const {
    return std::clamp<std::size_t>((std::size_t(1) << 15) / source_.columns, 32, 96) / n_at_once *
           n_at_once;
  }

  // Calls visit(first row, rows) with what the words of these rows pull at left_ along_^T in part_, and
  // the sums of their weights in row_weights_.
  template <class Visit>
  void for_each_part(const AskedRule& rule, Visit&& visit) {
    row_weights_.resize(most_together());
    for (std::size_t first = 0; first < source_.rows; first += most_together()) {
      const std::size_t n_rows = std::min(most_together(), source_.rows - first);
      part_.take(n_rows, [&](std::size_t i, float* pulls) {
        if (i % n_at_once == 0)
          product_.multiply(&left_[(first + i) * n], std::min(n_at_once, n_rows - i));
        row_weights_[i] = search_.pull[kind_of<Words>](
            source_[first + i], base_[first + i], product_.products(i % n_at_once),
            product_.unit(i % n_at_once), source_.columns, rule, pulls, weights_.data());
      });
      visit(first, n_rows);
    }
  }

  // A row of a factor, by what n_words words that weigh so much pull at it. Where few of them rule, their
  // squares are up to (1 + sqrt(rank / words that rule))^2 times those of all, if weights have nothing to
  // do with the other factor: then no step goes too far.
  void move(float* row, const float* pulls, std::size_t n_words, std::uint32_t weight,
            double spread) const {
    if (weight == 0) return;
    const double step = 1 / (1 + double(rank_) * spread / double(n_words));
    const auto by = float(step * double(n_words) * double(whole_weight) / double(weight));
    for (std::size_t k = 0; k < rank_; ++k) row[k] += pulls[k] * by;
  }

  std::size_t n;
  const SearchKernels& search_;
  WordRows source_, base_;
  IntegerRows<Words>& part_;
  Components<float>& found_;
  std::size_t rank_ = 0;
  IntegerProduct product_;
  std::vector<std::uint32_t> weights_, row_weights_;  // of columns; of rows of a part
  UnsetNumbers<float> left_, along_, looked_;
};

}  // namespace deltahub
