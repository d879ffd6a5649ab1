// The search for a product of low rank that predicts a fine-tune's words from its base's, in one
// dtype. Not part of the format.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "fm_delta/plan.hpp"
#include "kernels/codec_interface.hpp"
#include "kernels/low_rank/kernels.hpp"
#include "low_rank/entropy_model.hpp"
#include "low_rank/factors.hpp"
#include "low_rank/int16_rows.hpp"
#include "low_rank/least_squares/passes.hpp"
#include "low_rank/measured_pair.hpp"
#include "low_rank/outliers.hpp"
#include "low_rank/quantize_factors.hpp"
#include "low_rank/randomized_svd.hpp"
#include "low_rank/size_estimate.hpp"
#include "low_rank/thorough_search.hpp"

namespace deltahub {

// Limits of rows and of columns. Factors of longer sides would take more memory than a frame.
inline constexpr std::size_t least_side = 2 * component_step;
template <class Words>
inline constexpr std::size_t greatest_side = (std::size_t(1) << 18) / sizeof(typename Words::Word);

// Keeps the strongest components of the differences. The entropy model chooses how many, and how
// finely they are quantized; an estimate on some rows decides whether they pay. The factors of a
// merged adapter are refined. BF16 at default effort takes a quicker way, because nearly all stored
// tensors are BF16.
template <class Words>
class LowRankSearch {
 public:
  // Words must have at least least_side rows and columns.
  LowRankSearch(const Kernels& kernels, const SearchKernels& search, WordRows source, WordRows base,
                bool is_max)
      : pair_(kernels, search, source, base, is_max),
        svd_(search, source, base, svd_effort(is_max)) {}

  // The product; of rank 0 if none pays.
  LowRank run() {
    if (!pair_.is_quick && pair_.has_large_numbers()) return {};
    const bool is_found = svd_.run();
    may_have_outliers_ = is_found ? may_have_outliers(svd_.found()) : svd_.has_overflown();
    if (!is_found || !pair_.measure_ulps()) return {};
    pair_.energy = svd_.energy();
    EstimatedFit best;
    if constexpr (is_bf16)
      if (pair_.is_quick) best = quick_fit();
    if (!pair_.is_quick) {
      Components<Real> components;
      if (pair_.energy - svd_.found().energy(svd_.found().n) < faint * pair_.energy) {
        if (!svd_.project_exactly(components, pair_.energy)) return {};
      } else {
        components = as_real(std::move(svd_.found()));
      }
      best = ThoroughSearch<Words>(pair_).run(components);
    }
    const bool pays = best.low_rank.rank > 0 && best.bits < (1 - least_gain) * best.without;
    return pays ? std::move(best.low_rank) : LowRank{};
  }
  // Whether outliers may have misled the search.
  bool needs_outliers_out() const { return may_have_outliers_; }

 private:
  using Real = typename MeasuredPair<Words>::Real;
  using Estimate = SizeEstimate<Words>;
  using Quantized = QuantizedComponents<Words, float>;
  static constexpr bool is_bf16 = std::is_same_v<Words, Bf16Words>;

  static SvdEffort svd_effort(bool is_max) {
    if (is_max) return {3 * component_step, 3, false};
    if (is_bf16) return {component_step, 1, true};
    // The finer the words are, the weaker are the components that still predict digits.
    return {(std::is_same_v<Words, F32Words> ? 3 : 2) * component_step, 2, false};
  }

  static Components<Real> as_real(Components<float> found) {
    if constexpr (std::is_same_v<Real, float>)
      return found;
    else
      return {found.n,
              {found.left.begin(), found.left.end()},
              {found.right.begin(), found.right.end()},
              std::move(found.singular_values)};
  }

  // The plan of the entropy model. A merged adapter whose fit takes much more than the adapter
  // itself is refined: first by passes, then, if these do not help enough, by least squares.
  EstimatedFit quick_fit() {
    Components<float>& components = svd_.found();
    const RankOfMerge rank = pair_.rank_of_merge(components);
    const bool is_merge = rank.found > 0;
    // Fewer words suffice for a small merged adapter, because it pays by far.
    const std::size_t n_words = is_merge ? std::clamp(pair_.rows() * pair_.columns() / 128,
                                                      estimated_words / 2, 4 * estimated_words)
                                         : estimated_words;
    Estimate estimate(pair_.kernels, pair_.search, pair_.source, pair_.base, n_words);
    QuantizationPlan plan = pair_.plan_of(components, 1.02);
    // The residuals of a merged adapter are hardly noise, so finer factors save more than the model
    // says.
    if (is_merge) plan.finest_noise = -11, plan.coarsest_noise = -1;
    EstimatedFit best = fit(quantized(components), plan, estimate, is_merge);
    if (best.low_rank.rank == 0 || !is_merge) return best;
    const auto takes = [&](double times, std::size_t n) {
      return best.bits > times * 16.0 * double(n) * double(pair_.rows() + pair_.columns());
    };
    if (!takes(most_of_merges, rank.found)) return best;
    if (!refine(rank.found, estimate, best, takes) || pair_.has_large_numbers()) return best;
    // The passes have changed the components. They are computed again, because few searches need
    // them and a copy would cost every search.
    if (!svd_.run()) return best;
    const ThoroughSearch<Words> thorough(pair_);
    EstimatedFit other = thorough.least_squares_fit(components, rank.most);
    if (other.low_rank.rank > 0) {
      Estimate close(pair_.kernels, pair_.search, pair_.source, pair_.base, thorough.close_words,
                     thorough.close_factor_rows);
      best = EstimatedFit::of(std::move(best.low_rank), close, false);
      if (other.bits < best.bits) return other;
    }
    return best;
  }
  // Runs passes over all words while they make the frame smaller. Whether the fit still takes much
  // more than the adapter.
  template <class Takes>
  bool refine(std::size_t found, Estimate& estimate, EstimatedFit& best, const Takes& takes) {
    Components<float>& components = svd_.found();
    constexpr int below_first = middle_exponent<Words> + Words::mantissa_bits;
    const UlpShares<Words>& ulps = pair_.ulps();
    const int typical = int(std::rint(std::log2(12 * ulps.rounding()) / 2)) + below_first;
    std::size_t rank = std::min(found + 2, components.n);  // rounding may hide two weak components
    RefinementPasses<Words> passes(pair_.search, pair_.source, pair_.base, svd_.batch(),
                                   components);
    for (TargetRule rule : passes_of_merges) {
      rule.typical = typical, rule.is_rounded = best.low_rank.is_rounded;
      const auto weighted = ulps.weighted(typical - rule.octaves - below_first);
      if (!passes.run(rule, rank, weighted.spread)) break;
      // Components of noise are dropped, because later passes would make them copies of strong
      // ones.
      const double noise = least_over_noise * std::sqrt(weighted.rounding) * pair_.noise_edge();
      while (rank > 1 && components.singular_values[rank - 1] < noise) --rank;
      EstimatedFit finer = fit_finer(rank, estimate);
      if (finer.low_rank.rank == 0 || finer.bits >= best.bits) break;
      best = std::move(finer);
      if (!takes(enough_of_merges, std::min(rank, found))) return false;
    }
    return takes(most_of_merges, std::min(rank, found));
  }
  EstimatedFit fit_finer(std::size_t rank, Estimate& estimate) const {
    const Components<float>& components = svd_.found();
    const Quantized integers = quantized(components);
    QuantizationPlan plan = pair_.plan_of_merge(components, rank);
    plan.error_of_noise = plan.error[components.n / 2];
    plan.finest_noise = -20;
    EstimatedFit best = fit(integers, plan, estimate, true);
    // Closer factors are worth finer integers. The entropy model does not know how close they are,
    // so estimates decide.
    for (bool is_better = best.low_rank.rank > 0; is_better;) {
      plan.finest_noise -= 2, plan.coarsest_noise -= 2;
      EstimatedFit finer = fit(integers, plan, estimate, true);
      is_better = finer.low_rank.rank > 0 && finer.bits < best.bits;
      if (is_better) best = std::move(finer);
    }
    return best;
  }
  Quantized quantized(const Components<float>& components) const {
    return {pair_.search, components, pair_.rows(), pair_.columns()};
  }
  // plan: its noise becomes the one that the entropy model chose.
  EstimatedFit fit(const Quantized& integers, QuantizationPlan& plan, Estimate& estimate,
                   bool may_be_rounded) const {
    return EstimatedFit::of(integers.best(pair_.ulps(), plan), estimate, may_be_rounded);
  }

  static constexpr std::size_t estimated_words = std::size_t(1) << 13;
  // If components leave less than this share of the squares, differences are a product except for
  // its rounding. 16-bit integers are then too coarse, and the components are projected again in
  // floats.
  static constexpr double faint = 1e-3;
  // Bits of a fit, in terms of an adapter of 16-bit numbers: refinement starts above the one, and
  // ends below the other.
  static constexpr double most_of_merges = 2, enough_of_merges = 1.9;
  static constexpr double least_over_noise = 1.2;  // in units of the strongest component of noise
  // The first pass fits the differences, the other passes fit the intervals that words were rounded
  // from. `octaves` grows from pass to pass, because with many octaves a few fine words would
  // dominate the fit before the factors are close.
  static constexpr TargetRule passes_of_merges[] = {
      {.octaves = 3},
      {.octaves = 5, .uses_intervals = true, .margin = 0.1f},
      {.octaves = 6, .uses_intervals = true, .margin = 0.1f},
      {.octaves = 7, .uses_intervals = true, .margin = 0.1f},
      {.octaves = 7, .uses_intervals = true, .margin = 0.05f},
      {.octaves = 7, .uses_intervals = true, .margin = 0.05f},
  };

  MeasuredPair<Words> pair_;
  RandomizedSvd<Words> svd_;
  bool may_have_outliers_ = false;
};

}  // namespace deltahub
