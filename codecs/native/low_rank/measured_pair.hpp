// The words of a fine-tune and of its base, with the statistics that decide about a product: how
// finely words are rounded, how large their differences are, and whether these are a merged
// adapter's.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/words.hpp"
#include "fm_delta/plan.hpp"
#include "kernels/codec_interface.hpp"
#include "kernels/low_rank/kernels.hpp"
#include "low_rank/entropy_model.hpp"
#include "low_rank/factors.hpp"
#include "low_rank/int16_rows.hpp"
#include "low_rank/quantize_factors.hpp"
#include "low_rank/size_estimate.hpp"

namespace deltahub {

// A product, and the estimated bits of all words with it and without.
struct EstimatedFit {
  LowRank low_rank;
  double bits = std::numeric_limits<double>::infinity(), without = 0;

  // The fit of this product. may_be_rounded: also decides whether the product is rounded.
  template <class Words>
  static EstimatedFit of(LowRank low_rank, SizeEstimate<Words>& estimate, bool may_be_rounded) {
    EstimatedFit fit{std::move(low_rank)};
    fit.without = estimate.without();
    if (fit.low_rank.rank > 0) fit.bits = estimate.with(fit.low_rank, may_be_rounded);
    return fit;
  }
};

inline constexpr double least_gain = 0.01;  // a product must save this share of the size without it

// The number of components of a merged adapter. 0 if the differences are not one.
struct RankOfMerge {
  std::size_t found = 0;  // components stronger than the rounding noise
  std::size_t most = 0;   // with a margin for weak ones, which appear only once words are weighted
};

template <class Words>
class MeasuredPair {
 public:
  using Word = typename Words::Word;
  // Double for F32 words, because float32 would lose the last digits of their products.
  using Real = std::conditional_t<std::is_same_v<Words, F32Words>, double, float>;

  // BF16 at default effort has a quicker search, because nearly all stored tensors are BF16.
  MeasuredPair(const Kernels& kernels, const SearchKernels& search, WordRows source, WordRows base,
               bool is_max)
      : kernels(kernels), search(search), source(source), base(base), is_max(is_max),
        is_quick(std::is_same_v<Words, Bf16Words> && !is_max),
        n_words(double(source.rows) * double(source.columns)) {}

  const Kernels& kernels;
  const SearchKernels& search;
  const WordRows source, base;
  const bool is_max, is_quick;
  const double n_words;
  double energy = 0;  // the sum of squares of all differences

  std::size_t rows() const { return source.rows; }
  std::size_t columns() const { return source.columns; }

  // Samples the ulps. False if no sampled word is finite.
  bool measure_ulps() {
    std::array<std::uint32_t, std::size_t(1) << Words::exponent_bits> counts{};
    for_sampled_rows(64, [&](std::size_t row) {
      for (std::size_t j = 0; j < columns(); ++j)
        ++counts[Words::exponent(load<Word>(source[row] + j * sizeof(Word)))];
    });
    ulps_.emplace(counts);
    return !ulps_->empty();
  }
  const UlpShares<Words>& ulps() const { return *ulps_; }

  // Whether squares of sums may overflow, because a number is 2^31 or larger. No trained weight is:
  // such words are random bits, or not floats at all.
  bool has_large_numbers() const {
    constexpr auto large =
        std::uint32_t(std::min(middle_exponent<Words> + 31, (1 << Words::exponent_bits) - 1))
        << Words::mantissa_bits;
    for (std::size_t i = 0; i < rows(); ++i)
      for (const WordRows* words : {&source, &base})
        if (search.greatest[kind_of<Words>]((*words)[i], columns()) >= large) return true;
    return false;
  }

  // The largest singular value of noise of variance 1, about.
  double noise_edge() const { return std::sqrt(double(rows())) + std::sqrt(double(columns())); }

  // Differences are a merged adapter's if a few components leave no more than the rounding of
  // words.
  RankOfMerge rank_of_merge(const Components<Real>& components) const {
    const double noise = std::sqrt(ulps().rounding()) * noise_edge();
    RankOfMerge rank;
    while (rank.found < components.n && components.singular_values[rank.found] > 1.1 * noise)
      ++rank.found;
    rank.most = std::min({rank.found + 2 + rank.found / 8, most_rank, components.n - 1});
    if (rank.found == 0 || rank.found > rank.most) return {};
    // For words finer than BF16 the residual is computed, because the singular values are not exact
    // enough to give it as a difference of sums of squares.
    const double left = is_quick ? (energy - components.energy(rank.most)) / n_words
                                 : mean_square_left(components, rank.most);
    const bool is_merge = left < most_left * ulps().rounding() * changed_share();
    return is_merge ? rank : RankOfMerge{};
  }

  // rounding_share: the share of the rounding error that is in the residuals of components.
  QuantizationPlan plan_of(const Components<Real>& components, double rounding_share) const {
    const double floor = rounding_share * ulps().rounding(), least = 1e-3 * ulps().rounding();
    const auto error = [&](double left) { return std::max(left / n_words - floor, least); };
    QuantizationPlan plan{.error_without = error(energy),
                          .error = std::vector<double>(components.n)};
    double left = energy;
    for (std::size_t k = 0; k < components.n; ++k) {
      left -= components.singular_values[k] * components.singular_values[k];
      plan.error[k] = error(left);
    }
    plan.error_of_noise = plan.error[std::min(components.n, most_rank) / 2];
    return plan;
  }
  // The plan of a refined merged adapter, which leaves little more than rounding.
  QuantizationPlan plan_of_merge(const Components<Real>& components, std::size_t rank) const {
    const double all = components.energy(rank);
    QuantizationPlan plan{.error_without = all / n_words,
                          .error = std::vector<double>(components.n),
                          .greatest_rank = std::min(rank, most_rank)};
    for (std::size_t k = 0; k < components.n; ++k) {
      const double left = std::max(all - components.energy(k + 1), 0.0);
      plan.error[k] = left / n_words + 0.01 * ulps().rounding();
    }
    return plan;
  }

 private:
  // Calls visit(row) for rows at equal distances.
  template <class Visit>
  void for_sampled_rows(std::size_t most, Visit&& visit) const {
    const std::size_t n_rows = std::clamp<std::size_t>(sampled_words / columns(), 16, most);
    const std::size_t step = (rows() + n_rows - 1) / n_rows;
    for (std::size_t row = 0; row < rows(); row += step) visit(row);
  }
  // The mean square of the residuals of the first components, on sampled rows.
  double mean_square_left(const Components<Real>& components, std::size_t rank) const {
    double sum = 0, count = 0;
    std::vector<double> left(columns());
    for_sampled_rows(64, [&](std::size_t row) {
      search.subtract_exactly[kind_of<Words>](source[row], base[row], columns(), left.data());
      const Real* const of_row = &components.left[row * components.n];
      for (std::size_t j = 0; j < columns(); ++j) {
        const Real* const of_column = &components.right[j * components.n];
        double product = 0;
        for (std::size_t k = 0; k < rank; ++k) product += double(of_row[k]) * double(of_column[k]);
        sum += (left[j] - product) * (left[j] - product);
      }
      count += double(columns());
    });
    return sum / count;
  }
  // The share of sampled rows that differ from the base.
  double changed_share() const {
    std::size_t n_changed = 0, n = 0;
    for_sampled_rows(rows(), [&](std::size_t row) {
      n_changed += std::memcmp(source[row], base[row], columns() * sizeof(Word)) != 0, ++n;
    });
    return double(n_changed) / double(n);
  }

  static constexpr std::size_t sampled_words = std::size_t(1) << 14;
  // Residual of a merged adapter, in units of the rounding error.
  static constexpr double most_left = 1.4;

  std::optional<UlpShares<Words>> ulps_;
};

}  // namespace deltahub
