// The search for F16, F32 and effort max: it estimates the size of many quantized products, where
// the quick search of BF16 relies on the entropy model.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>

#include "kernels/low_rank/kernels.hpp"
#include "low_rank/factors.hpp"
#include "low_rank/least_squares/fit.hpp"
#include "low_rank/least_squares/plan.hpp"
#include "low_rank/measured_pair.hpp"
#include "low_rank/quantize_factors.hpp"
#include "low_rank/size_estimate.hpp"

namespace deltahub {

template <class Words>
class ThoroughSearch {
 public:
  using Real = typename MeasuredPair<Words>::Real;
  using Estimate = SizeEstimate<Words>;

  // Of an estimate that compares plans which differ little: words, and rows of factors.
  static constexpr std::size_t close_words = std::size_t(1) << 16, close_factor_rows = 512;

  // pair: its ulps and its energy are measured.
  explicit ThoroughSearch(const MeasuredPair<Words>& pair) : pair_(pair), is_max_(pair.is_max) {}

  // The smallest fit; of rank 0 if none was found.
  EstimatedFit run(const Components<Real>& components) const {
    const RankOfMerge rank = pair_.rank_of_merge(components);
    EstimatedFit best;
    if (rank.found > 0) best = least_squares_fit(components, rank.most);
    const bool is_merge = best.low_rank.rank > 0;
    Estimate estimate = close_estimate();
    const double without = estimate.without();
    const double most = is_merge ? best.bits : almost_all * without;
    if (!is_merge || is_max_ || most > clear * without) {
      EstimatedFit other = fit_components(components, estimate, most);
      if (other.bits < best.bits) best = std::move(other);
    }
    return best;
  }

  // A merged adapter's fit by least squares, from its first `rank` components. Of rank 0 if the
  // differences are not a merged adapter.
  EstimatedFit least_squares_fit(const Components<Real>& components, std::size_t rank) const {
    const AlternatingLeastSquares<Words> least_squares(pair_.search, pair_.source, pair_.base,
                                                       pair_.ulps());
    const auto merge = least_squares.run(components, rank, least_squares_plan<Words>(is_max_));
    if (!merge) return {};
    Estimate estimate = close_estimate();
    const Components<Real>& refined = merge->components;
    const Quantized integers(pair_.search, refined, pair_.rows(), pair_.columns());
    QuantizationPlan plan = pair_.plan_of_merge(refined, merge->rank);
    plan.error_of_noise = plan.error[plan.greatest_rank / 2];
    plan.least_rank = 1, plan.finest_noise = -22, plan.coarsest_noise = 0;
    EstimatedFit best = search_noise(
        integers, plan, estimate, {.n_estimates = 8, .finer = 3, .is_rounded = merge->is_rounded});
    // With its remainders each component takes three of the format's ranks. The weakest components
    // may be noise, so they are left out where the strong ones need all ranks.
    if (!std::is_same_v<Words, Bf16Words>)
      for (const int coarser : {0, 2, 4}) {
        LowRank parts = integers.quantized_with_remainders(
            std::min(plan.greatest_rank, most_rank / 3), coarser);
        parts.is_rounded = merge->is_rounded;
        EstimatedFit fit = EstimatedFit::of(std::move(parts), estimate, false);
        if (fit.bits < best.bits) best = std::move(fit);
      }
    if (best.low_rank.rank == 0) return best;
    best.low_rank.is_rounded = !best.low_rank.is_rounded;
    if (const double bits = estimate.with(best.low_rank, false); bits < best.bits)
      best.bits = bits;
    else
      best.low_rank.is_rounded = !best.low_rank.is_rounded;
    return best;
  }

 private:
  using Quantized = QuantizedComponents<Words, Real>;

  Estimate close_estimate() const {
    const std::size_t n_words = (is_max_ ? 2 * close_words : close_words) >> is_small();
    return {pair_.kernels, pair_.search, pair_.source, pair_.base, n_words, close_factor_rows};
  }

  bool is_small() const { return !is_max_ && pair_.n_words < double(rank_search_words); }

  // most: bits. Only a first fit below this is worth more estimates.
  EstimatedFit fit_components(const Components<Real>& components, Estimate& estimate,
                              double most) const {
    const Quantized integers(pair_.search, components, pair_.rows(), pair_.columns());
    QuantizationPlan plan = pair_.plan_of(components, 1);
    plan.least_rank = 1;
    EstimatedFit best = search_noise(integers, plan, estimate, {.n_estimates = 4, .most = most});
    if (is_small() || best.low_rank.rank == 0) return best;
    // Other ranks are estimated too, because the entropy model does not know of rows that did not
    // change.
    const auto rank = std::size_t(best.low_rank.rank);
    const auto is_better = [&](std::size_t other) {
      QuantizationPlan with = plan;
      with.least_rank = with.greatest_rank = other;
      with.error_of_noise = plan.error[other / 2];
      const int n_estimates = is_max_ || std::is_same_v<Words, F32Words> ? 3 : 1;
      EstimatedFit fit = search_noise(integers, with, estimate, {.n_estimates = n_estimates});
      if (fit.bits >= best.bits) return false;
      best = std::move(fit);
      return true;
    };
    constexpr std::size_t all_ranks[] = {2, 4, 8, 12, 16, 20, 24, 32, 40, 48, 56, 64};
    constexpr std::size_t some_ranks[] = {4, 8, 16, 24, 32, 48};
    const std::span<const std::size_t> ranks = is_max_ ? std::span<const std::size_t>(all_ranks)
                                                       : std::span<const std::size_t>(some_ranks);
    const bool pays = best.bits < (1 - least_gain) * best.without;
    for (std::size_t i = ranks.size(); i-- > 0;)
      if (ranks[i] < rank && !is_better(ranks[i])) break;
    for (std::size_t i = 0; pays && i < ranks.size(); ++i)
      if (ranks[i] > rank && (ranks[i] > components.n || !is_better(ranks[i]))) break;
    return best;
  }

  struct NoiseSearch {
    int n_estimates;
    int finer = 0;  // octaves from the entropy model's noise to the first one that is estimated
    // Bits; a first fit above ends the search.
    double most = std::numeric_limits<double>::infinity();
    bool is_rounded = false;
  };
  // The smallest fit by a line search over the quantization noise, which starts where the entropy
  // model has its minimum.
  EstimatedFit search_noise(const Quantized& integers, const QuantizationPlan& plans,
                            Estimate& estimate, const NoiseSearch& limits) const {
    const auto fit_at = [&](int noise) {
      QuantizationPlan plan = plans;
      plan.finest_noise = plan.coarsest_noise = noise;
      LowRank low_rank = integers.best(pair_.ulps(), plan);
      low_rank.is_rounded = limits.is_rounded;
      return EstimatedFit::of(std::move(low_rank), estimate, false);
    };
    const int first =
        std::max(plans.finest_noise, integers.best_noise(pair_.ulps(), plans) - limits.finer);
    EstimatedFit best = fit_at(first);
    int left = best.bits < limits.most ? limits.n_estimates - 1 : 0;
    for (const int step : {-1, 1}) {
      bool is_better = false;
      for (int noise = first + step;
           left > 0 && noise >= plans.finest_noise && noise <= plans.coarsest_noise;
           noise += step, --left) {
        EstimatedFit other = fit_at(noise);
        if (other.bits >= best.bits) break;
        best = std::move(other), is_better = true;
      }
      if (is_better) break;
    }
    return best;
  }

  // Other ranks are not searched for smaller tensors.
  static constexpr std::size_t rank_search_words = std::size_t(1) << 20;
  static constexpr double almost_all = 0.4, clear = 0.2;  // shares of the size without a product

  const MeasuredPair<Words>& pair_;
  bool is_max_;
};

}  // namespace deltahub
