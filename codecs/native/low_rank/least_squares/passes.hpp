// Passes that refine the components of a merged adapter. Each word has a weight, because fine words
// were rounded by less than coarse ones and so determine the product better. Not part of the
// format.
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

// Rows of the product of two thin factors of floats, computed in 16-bit integers.
class IntegerProduct {
 public:
  IntegerProduct(const SearchKernels& search, std::size_t columns, std::size_t n_components)
      : n(n_components), search_(search), columns_(columns), wide_((columns + 31) / 32 * 32) {}

  // right: columns x n numbers; the first `rank` of each row are used.
  void set_right(const UninitializedVector<float>& right, std::size_t rank) {
    n_pairs_ = (rank + 1) / 2;
    double longest = 0;
    for (std::size_t j = 0; j < columns_; ++j)
      longest = std::max(longest, search_.energy(&right[j * n], n));
    scale_ = longest > 0 ? most / std::sqrt(longest) : 0;
    UninitializedVector<std::int16_t> numbers(columns_ * n);
    search_.quantize(right.data(), numbers.size(), float(scale_), numbers.data());
    pairs_.assign(n_pairs_ * 2 * wide_, 0);
    for (std::size_t j = 0; j < columns_; ++j)
      for (std::size_t l = 0; l < 2 * n_pairs_; ++l)
        pairs_[(l / 2 * wide_ + j) * 2 + l % 2] = numbers[j * n + l];
  }
  // left: n_rows rows of n floats.
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
  // The greatest length of a row of integers. Sums of products of two such rows fit 31 bits.
  static constexpr double most = 32767;

  std::size_t n;
  const SearchKernels& search_;
  std::size_t columns_, wide_, n_pairs_ = 0;
  double scale_ = 0;
  UninitializedVector<std::int16_t> pairs_, numbers_;
  UninitializedVector<float> units_;
  UninitializedVector<std::int32_t> products_;
};

// Weighted least squares for one factor after the other. The normal equations of a row are not
// solved. Their matrix is replaced with that of unweighted words, times the row's mean weight; the
// next pass corrects most of the error that remains.
template <class Words>
class RefinementPasses {
 public:
  // found: components of source - base; each pass changes them. batch: is filled again by each
  // pass.
  RefinementPasses(const SearchKernels& search, WordRows source, WordRows base,
                   IntegerRows<Words>& batch, Components<float>& found)
      : n(found.n), search_(search), source_(source), base_(base), batch_(batch), found_(found),
        product_(search, source.columns, found.n), weights_(source.columns), left_(source.rows * n),
        right_(source.columns * n) {}

  // Updates both factors once. Components from `rank` on become 0. spread: of the weights, see
  // UlpShares::Weighted. False if the product is 0 or not finite; the components are then
  // undefined.
  bool run(const TargetRule& rule, std::size_t rank, double spread) {
    rank_ = rank;
    // The weights spread more, because those of satisfied words are only a sixteenth.
    if (rule.uses_intervals) spread *= 4;
    const std::size_t rows = source_.rows, columns = source_.columns;
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t k = 0; k < n; ++k)
        left_[i * n + k] =
            k < rank_ ? found_.left[i * n + k] * float(found_.singular_values[k]) : 0;
    for (std::size_t j = 0; j < columns; ++j)
      for (std::size_t k = 0; k < n; ++k)
        right_[j * n + k] =
            k < rank_ ? found_.right[j * n + k] / float(found_.singular_values[k]) : 0;
    product_.set_right(right_, rank_);
    batch_.set_basis(right_.data());
    projected_.resize(n * most_batch_rows());
    for_each_batch(rule, [&](std::size_t first, std::size_t n_rows) {
      batch_.multiply(projected_.data());
      for (std::size_t i = 0; i < n_rows; ++i)
        update(&left_[(first + i) * n], &projected_[i * n], columns, row_weights_[i], spread);
    });
    const ThinProducts<float> thin(search_, n);
    std::vector<double> squares = thin.squares(left_);
    const double trace = thin.trace(squares);
    if (!(trace > no_energy) || !std::isfinite(trace)) return false;
    UninitializedVector<float> transform(n * n), core_transform, products(n * n);
    for (double& each : squares) each /= trace;  // because it may overflow a float
    std::ranges::transform(squares, products.begin(), [](double each) { return float(each); });
    search_.whiten(squares.data(), n, transform.data());
    thin.multiply(products, transform, core_transform);
    const auto length = float(std::sqrt(trace));
    for (float& each : transform) each /= length;
    for (float& each : core_transform) each *= length;
    // left_ right_^T = unit core^T, where the columns of unit are orthonormal.
    UninitializedVector<float> unit, core;
    thin.multiply(left_, transform, unit);
    thin.multiply(right_, core_transform, core);
    std::ranges::fill(weights_, 0u);  // the first loop has added to them, too
    batch_.clear_sums();
    for_each_batch(
        rule, [&](std::size_t first, std::size_t) { batch_.add_transposed(&unit[first * n]); });
    const UninitializedVector<float> residuals = batch_.transposed_sums();
    for (std::size_t j = 0; j < columns; ++j)
      update(&core[j * n], &residuals[j * n], rows, weights_[j], spread);
    return found_.decompose(search_, left_, transform, core);
  }

 private:
  static constexpr std::size_t n_at_once = 8;

  std::size_t most_batch_rows() const {
    return std::clamp<std::size_t>((std::size_t(1) << 15) / source_.columns, 32, 96) / n_at_once *
           n_at_once;
  }

  // Calls visit(first, n_rows) for batches of rows. batch_ then has their weighted residuals from
  // left_ right_^T, and row_weights_ the sums of their weights.
  template <class Visit>
  void for_each_batch(const TargetRule& rule, Visit&& visit) {
    row_weights_.resize(most_batch_rows());
    for (std::size_t first = 0; first < source_.rows; first += most_batch_rows()) {
      const std::size_t n_rows = std::min(most_batch_rows(), source_.rows - first);
      batch_.load(n_rows, [&](std::size_t i, float* residuals) {
        if (i % n_at_once == 0)
          product_.multiply(&left_[(first + i) * n], std::min(n_at_once, n_rows - i));
        row_weights_[i] = search_.integer_weighted_residuals[kind_of<Words>](
            source_[first + i], base_[first + i], product_.products(i % n_at_once),
            product_.unit(i % n_at_once), source_.columns, rule, residuals, weights_.data());
      });
      visit(first, n_rows);
    }
  }

  // Updates a row of a factor by the residuals of its n_words words, whose weights sum to `weight`.
  // If few words dominate, the matrix of the row's normal equations may be up to (1 + sqrt(rank /
  // dominant words))^2 times the unweighted one, provided that weights do not depend on the other
  // factor. The step is shortened so that it does not overshoot.
  void update(float* row, const float* residuals, std::size_t n_words, std::uint32_t weight,
              double spread) const {
    if (weight == 0) return;
    const double step = 1 / (1 + double(rank_) * spread / double(n_words));
    const auto by = float(step * double(n_words) * double(unit_weight) / double(weight));
    for (std::size_t k = 0; k < rank_; ++k) row[k] += residuals[k] * by;
  }

  std::size_t n;
  const SearchKernels& search_;
  WordRows source_, base_;
  IntegerRows<Words>& batch_;
  Components<float>& found_;
  std::size_t rank_ = 0;
  IntegerProduct product_;
  std::vector<std::uint32_t> weights_, row_weights_;  // of columns; of rows of a batch
  UninitializedVector<float> left_, right_, projected_;
};

}  // namespace deltahub
