// Alternating least squares on a difference that is of low rank except for the rounding of its
// words, as that of a merged adapter: first to the differences, then to the intervals that words
// were rounded from. Not part of the format.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/short_floats.hpp"
#include "base/words.hpp"
#include "kernels/low_rank/kernels.hpp"
#include "low_rank/entropy_model.hpp"
#include "low_rank/factors.hpp"
#include "low_rank/int16_rows.hpp"
#include "low_rank/least_squares/noise.hpp"
#include "low_rank/least_squares/plan.hpp"
#include "low_rank/least_squares/product.hpp"

namespace deltahub {

template <class Real>
struct FittedMerge {
  Components<Real> components;
  std::size_t rank;
  bool is_rounded;  // the product fits better if it is rounded before it is added
};

template <class Words>
class AlternatingLeastSquares {
 public:
  // Double for F32 words, because float32 would lose the last digits of their products.
  using Real = std::conditional_t<Words::word_bits == 32, double, float>;

  // ulps: those of source.
  AlternatingLeastSquares(const SearchKernels& search, WordRows source, WordRows base,
                          const UlpShares<Words>& ulps)
      : search_(search), source_(source), base_(base), ulps_(ulps),
        typical_(int(std::rint(std::log2(12 * ulps.rounding()) / 2)) + below_first) {}

  // Fits the first `rank` components of `found` and drops those that are noise. Nothing if their
  // residual is larger than rounding explains. Numbers must be below 2^30, so that squares of sums
  // are finite.
  std::optional<FittedMerge<Real>> run(const Components<Real>& found, std::size_t rank,
                                       const LeastSquaresPlan& plan) const {
    Product whole = Product::of(found, rank);
    const std::size_t wanted = std::max(8 * rank, plan.sampled_words / source_.columns);
    const std::size_t every = std::max<std::size_t>(source_.rows / wanted, 1);
    Pair sampled_pair = Pair{source_, base_, false}.every(every);
    Product sampled{whole.n, whole.rank, {}, whole.right};
    for (std::size_t i = 0; i < source_.rows; i += every)
      sampled.left.insert(sampled.left.end(), &whole.left[i * whole.n],
                          &whole.left[i * whole.n] + whole.n);
    if (!is_f32) {
      const auto n_rows = double(sampled_pair.source.rows), n_columns = double(source_.columns);
      const double share = double(rank) * (n_rows + n_columns) / (n_rows * n_columns);
      const double error = mean_square_error(sampled_pair, sampled, plan.on_sample[0]);
      if (!(error <= most_of_svd + most_in_factors * share)) return {};
    }
    for (std::size_t i = 0; i < plan.on_sample.size(); ++i) {
      const PlannedStep& step = plan.on_sample[i];
      update_left(sampled_pair, sampled, step);
      if (!Product::orthonormalize(search_, sampled.left, sampled.right, sampled.n)) return {};
      update_right(sampled_pair, sampled, step);
      const double rounding = ulps_.weighted(typical_ - below_first - step.rule.octaves).rounding;
      if (!drop_noise<Words>(search_, sampled_pair.source, rounding, sampled)) return {};
      if (i > 0) continue;
      const double error = mean_square_error(sampled_pair, sampled, step);
      if (!(error <= (is_f32 ? most_error_f32 : most_error))) return {};
      sampled_pair.is_rounded = !is_f32 && is_rounded_before_sum(sampled_pair, sampled);
    }
    // The SVD gives a left factor of all rows; the sample gives a better right factor.
    whole.project_on(sampled);
    const Pair pair{source_, base_, sampled_pair.is_rounded};
    const LeastSquaresPlan::OnAll& on_all = pair.is_rounded ? plan.if_rounded : plan.on_all;
    update_left(pair, whole, on_all.first);
    for (std::size_t i = 0; i < on_all.in_turn.size(); ++i) {
      const bool is_right = i % 2 == 0;
      auto &fixed = is_right ? whole.left : whole.right,
           &updated = is_right ? whole.right : whole.left;
      if (!Product::orthonormalize(search_, fixed, updated, whole.n)) return {};
      if (is_right)
        update_right(pair, whole, on_all.in_turn[i]);
      else
        update_left(pair, whole, on_all.in_turn[i]);
    }
    const std::size_t kept = whole.rank;
    FittedMerge<Real> merge{Product::components_of(search_, std::move(whole)), kept,
                            pair.is_rounded};
    if (merge.components.n == 0) return {};
    return merge;
  }

 private:
  static constexpr bool is_f32 = Words::word_bits == 32;
  using Word = typename Words::Word;
  using Product = FittedProduct<Real>;
  using Numbers = typename Product::Numbers;
  static constexpr std::size_t word_bytes = sizeof(Word);
  // The exponent field of an ulp minus its log2.
  static constexpr int below_first = middle_exponent<Words> + Words::mantissa_bits;

  struct Pair {
    WordRows source, base;
    bool is_rounded;  // the product, before it is added

    Pair every(std::size_t step) const {
      Pair sampled = *this;
      for (WordRows* words : {&sampled.source, &sampled.base}) {
        words->stride *= std::ptrdiff_t(step);
        words->rows = (words->rows + step - 1) / step;
      }
      return sampled;
    }
  };

  // The left factor moves to the best fit for the right factor.
  void update_left(const Pair& pair, Product& product, const PlannedStep& step) const {
    const std::size_t stride = stride_of(pair, pair.source.columns, product.rank);
    const std::size_t n = (pair.source.columns + stride - 1) / stride;
    const auto grid = [&](const WordRows& words) {
      return WordGrid{words.begin, words.stride, std::ptrdiff_t(stride * word_bytes)};
    };
    update(grid(pair.source), grid(pair.base), n, stride, pair.is_rounded, step, product.left,
           product.right, product);
  }
  void update_right(const Pair& pair, Product& product, const PlannedStep& step) const {
    const std::size_t stride = stride_of(pair, pair.source.rows, product.rank);
    const std::size_t n = (pair.source.rows + stride - 1) / stride;
    const auto grid = [&](const WordRows& words) {
      return WordGrid{words.begin, std::ptrdiff_t(word_bytes),
                      words.stride * std::ptrdiff_t(stride)};
    };
    update(grid(pair.source), grid(pair.base), n, stride, pair.is_rounded, step, product.right,
           product.left, product);
  }
  // A step uses every stride-th of n rows or columns, which limits its work.
  static std::size_t stride_of(const Pair& pair, std::size_t n, std::size_t rank) {
    const double words = double(pair.source.rows) * double(pair.source.columns);
    const double work = words * double(rank * (rank + 1) / 2);
    const auto wanted = std::size_t(std::ceil(work / most_work));
    return std::max<std::size_t>(std::min(wanted, n / (8 * rank)), 1);
  }
  // words, base: a row for each row of `updated`, and n columns, one for every stride-th row of
  // `fixed`.
  void update(const WordGrid& words, const WordGrid& base, std::size_t n, std::size_t stride,
              bool is_rounded, const PlannedStep& step, Numbers& updated, const Numbers& fixed,
              const Product& product) const {
    const std::size_t rank = product.rank, n_systems = updated.size() / product.n;
    TargetRule rule = step.rule;
    rule.typical = typical_, rule.is_rounded = is_rounded;
    UninitializedVector<Real> given(rank * n), own(std::min(n_systems, systems_together) * rank);
    for (std::size_t k = 0; k < rank; ++k)
      for (std::size_t j = 0; j < n; ++j) given[k * n + j] = fixed[j * stride * product.n + k];
    UninitializedVector<double> solutions(own.size());
    for (std::size_t first = 0; first < n_systems; first += systems_together) {
      const std::size_t count = std::min(systems_together, n_systems - first);
      for (std::size_t i = 0; i < count; ++i)
        for (std::size_t k = 0; k < rank; ++k)
          own[i * rank + k] = updated[(first + i) * product.n + k];
      const auto from = [&](const WordGrid& grid) {
        return WordGrid{grid.begin + std::ptrdiff_t(first) * grid.row, grid.row, grid.column};
      };
      const LeastSquaresStep<Real> systems{from(words), from(base), count, n, rank, own.data(),
                                           given.data(), rule, solutions.data()};
      if constexpr (is_f32)
        search_.least_squares_step_exactly[kind_of<Words>](systems);
      else
        search_.least_squares_step[kind_of<Words>](systems);
      for (std::size_t i = 0; i < count; ++i)
        for (std::size_t k = 0; k < rank; ++k)
          updated[(first + i) * product.n + k] +=
              Real(step.over_relaxation * solutions[i * rank + k]);
    }
  }

  // Calls visit(row, products) for sampled rows, in order.
  template <class Visit>
  void for_sampled_rows(const Pair& pair, const Product& product, Visit&& visit) const {
    const std::size_t columns = pair.source.columns, rows = pair.source.rows;
    const std::size_t n_rows = std::clamp<std::size_t>(compared_words / columns, 1, 64);
    const std::size_t step = (rows + n_rows - 1) / n_rows;
    std::vector<Real> products(columns);
    for (std::size_t row = 0; row < rows; row += step) {
      for (std::size_t j = 0; j < columns; ++j) {
        double sum = 0;
        for (std::size_t k = 0; k < product.rank; ++k)
          sum += double(product.left[row * product.n + k] * product.right[j * product.n + k]);
        products[j] = Real(sum);
      }
      visit(row, products.data());
    }
  }

  // The weighted mean square of a product's residuals, divided by that of rounding alone.
  double mean_square_error(const Pair& pair, const Product& product,
                           const PlannedStep& step) const {
    const std::size_t columns = pair.source.columns;
    TargetRule rule = step.rule;
    rule.typical = typical_, rule.is_rounded = pair.is_rounded;
    std::vector<float> weights(columns), residuals(columns);
    double sum = 0, count = 0;
    for_sampled_rows(pair, product, [&](std::size_t row, const Real* products) {
      const std::uint8_t *const words = pair.source[row], *const base = pair.base[row];
      if constexpr (is_f32)
        search_.weighted_residuals_exactly[kind_of<Words>](words, base, products, columns, rule,
                                                           weights.data(), residuals.data());
      else
        search_.weighted_residuals[kind_of<Words>](words, base, products, columns, rule,
                                                   weights.data(), residuals.data());
      for (std::size_t j = 0; j < columns; ++j)
        sum += double(residuals[j]) * double(residuals[j]) / double(weights[j]);
      count += double(columns);
    });
    return sum / count * 12 / std::exp2(2 * (typical_ - below_first));
  }

  // Whether more words are predicted exactly if products are rounded before they are added.
  bool is_rounded_before_sum(const Pair& pair, const Product& product) const {
    std::size_t n_equal[2] = {};
    for_sampled_rows(pair, product, [&](std::size_t row, const Real* products) {
      for (std::size_t j = 0; j < pair.source.columns; ++j) {
        const auto word = load<Word>(pair.source[row] + j * word_bytes);
        const double base = number<Words>(load<Word>(pair.base[row] + j * word_bytes));
        const double product = products[j];
        const double rounded = number<Words>(nearest(product));
        n_equal[0] += nearest(base + product) == word;
        n_equal[1] += nearest(base + rounded) == word;
      }
    });
    return n_equal[1] > n_equal[0];
  }

  // The word nearest to a number. It is sometimes the second nearest, because the number is first
  // rounded to float32.
  static std::uint32_t nearest(double exact) {
    const auto bits = std::bit_cast<std::uint32_t>(float(exact));
    if constexpr (is_f32) {
      return bits;
    } else {
      constexpr int dropped = 23 - Words::mantissa_bits;
      constexpr std::uint32_t rebased = std::uint32_t(127 - middle_exponent<Words>) << 23;
      const std::uint32_t magnitude = bits & 0x7fffffff,
                          sign = bits >> 31 << (Words::word_bits - 1);
      if (rebased > 0 && magnitude < rebased + (1u << 23))  // a subnormal number
        return sign | std::uint32_t(std::nearbyint(std::abs(float(exact)) *
                                                   std::exp2(float(below_first - 1))));
      const std::uint32_t rounded =
          (magnitude - rebased + (1u << (dropped - 1)) - 1 + (magnitude >> dropped & 1)) >> dropped;
      return sign | std::min(rounded, infinite<Words>);
    }
  }

  // Limits of mean_square_error. That of the SVD's components may be most_of_svd (merged adapters
  // have 0.9 to 1.4), plus most_in_factors times the numbers of the factors for each word: the
  // factors have taken up this much of the rounding, and it weighs more in fine words.
  static constexpr double most_of_svd = 1.6, most_in_factors = 4;
  // The limits after a step on the sample. That of F32 is higher, because a merge in F32 also
  // rounds its sums.
  static constexpr double most_error = 1.5, most_error_f32 = 16;
  // Words times pairs of components in a step.
  static constexpr double most_work = double(1u << 31);
  static constexpr std::size_t compared_words = std::size_t(1) << 20;
  static constexpr std::size_t systems_together = std::size_t(1) << 12;

  const SearchKernels& search_;
  WordRows source_, base_;
  const UlpShares<Words>& ulps_;
  int typical_;
};

}  // namespace deltahub
