// The search for a product of low rank that predicts a fine-tune's words from its base's, in one dtype.
// Not part of the format.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "fm_delta/plan.hpp"
#include "kernels/codec_interface.hpp"
#include "kernels/low_rank/kernels.hpp"
#include "low_rank/entropy_model.hpp"
#include "low_rank/factors.hpp"
#include "low_rank/int16_rows.hpp"
#include "low_rank/least_squares.hpp"
#include "low_rank/outliers.hpp"
#include "low_rank/quantize_factors.hpp"
#include "low_rank/randomized_svd.hpp"
#include "low_rank/refine.hpp"
#include "low_rank/size_estimate.hpp"

namespace deltahub {

// Of rows and of columns; beyond the greatest, factors would take more memory than a frame.
inline constexpr std::size_t least_side = 2 * direction_step;
template <class Words>
inline constexpr std::size_t greatest_side = (std::size_t(1) << 18) / sizeof(typename Words::Word);

// The strongest components of the differences are kept, as many and as finely as a model of sizes says;
// an estimate on some rows tells whether they pay. Where the differences are a merged adapter's, its
// factors are refined. BF16 at default effort, by far the most of what is coded, has quicker ways.
template <class Words>
class LowRankSearch {
 public:
  // Words have at least least_side rows and columns.
  LowRankSearch(const Kernels& kernels, const SearchKernels& search, WordRows source, WordRows base,
                bool is_max)
      : kernels_(kernels), search_(search), source_(source), base_(base), is_max_(is_max),
        size_(double(source.rows) * double(source.columns)), svd_(search, source, base, svd_effort()) {}

  // The product; of rank 0 where none pays.
  LowRank run() {
    if (!is_quick() && has_large_numbers()) return {};
    const bool is_found = svd_.run();
    may_have_outliers_ = is_found ? may_have_outliers(svd_.found()) : svd_.has_overflown();
    if (!is_found) return {};
    ulps_.emplace(counted_exponents());
    if (ulps_->empty()) return {};
    energy_ = svd_.energy();
    Fit best;
    if constexpr (is_bf16)
      if (is_quick()) best = quick_fit();
    if (!is_quick()) {
      Components<Real> components;
      if (energy_ - svd_.found().energy(svd_.found().n) < faint * energy_) {
        if (!svd_.project_exactly(components, energy_)) return {};
      } else {
        components = as_real(std::move(svd_.found()));
      }
      best = thorough_fit(components);
    }
    return best.low_rank.rank > 0 && best.bits < (1 - least_gain) * best.without ? std::move(best.low_rank)
                                                                            : LowRank{};
  }
  // Whether the search may have been misled by outliers.
  bool needs_outliers_out() const { return may_have_outliers_; }

 private:
  using Word = typename Words::Word;
  using Real = typename AlternatingLeastSquares<Words>::Real;
  static constexpr bool is_f32 = std::is_same_v<Words, F32Words>;
  static constexpr bool is_bf16 = std::is_same_v<Words, Bf16Words>;

  // A product, and about the bits of all words with it, and without.
  struct Fit {
    LowRank low_rank;
    double bits = std::numeric_limits<double>::infinity(), without = 0;
  };
  using Estimate = TrialRows<Words>;

  bool is_quick() const { return is_bf16 && !is_max_; }
  std::size_t rows() const { return source_.rows; }
  std::size_t columns() const { return source_.columns; }

  SvdEffort svd_effort() const {
    if (is_max_) return {3 * direction_step, 3, false};
    if (is_bf16) return {direction_step, 1, true};
    // Of words as fine as those of F32 weak components still tell digits.
    return {(is_f32 ? 3 : 2) * direction_step, 2, false};
  }

  // Whether a number is so large (2^31 and more) that squares of sums may overflow. No trained weight is:
  // such words are random bits, or no floats at all.
  bool has_large_numbers() const {
    constexpr auto large = std::uint32_t(std::min(middle_exponent<Words> + 31,
                                                  (1 << Words::exponent_bits) - 1))
                           << Words::mantissa_bits;
    for (std::size_t i = 0; i < rows(); ++i)
      for (const WordRows* words : {&source_, &base_})
        if (search_.greatest[kind_of<Words>]((*words)[i], columns()) >= large) return true;
    return false;
  }

  // Some rows, from everywhere: visit(row).
  template <class Visit>
  void for_some_rows(std::size_t most, Visit&& visit) const {
    const std::size_t n_rows = std::clamp<std::size_t>(counted / columns(), 16, most);
    const std::size_t step = (rows() + n_rows - 1) / n_rows;
    for (std::size_t row = 0; row < rows(); row += step) visit(row);
  }
  auto counted_exponents() const {
    std::array<std::uint32_t, std::size_t(1) << Words::exponent_bits> counts{};
    for_some_rows(64, [&](std::size_t row) {
      for (std::size_t j = 0; j < columns(); ++j)
        ++counts[Words::exponent(load<Word>(source_[row] + j * sizeof(Word)))];
    });
    return counts;
  }
  // Of what the first components leave in some of the rows.
  double mean_square_left(const Components<Real>& components, std::size_t rank) const {
    double sum = 0, count = 0;
    std::vector<double> left(columns());
    for_some_rows(64, [&](std::size_t row) {
      search_.subtract_exactly[kind_of<Words>](source_[row], base_[row], columns(), left.data());
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

  static Components<Real> as_real(Components<float> found) {
    if constexpr (std::is_same_v<Real, float>)
      return found;
    else
      return {found.n, {found.left.begin(), found.left.end()}, {found.right.begin(), found.right.end()},
              std::move(found.strengths)};
  }

  double edge() const { return std::sqrt(double(rows())) + std::sqrt(double(columns())); }

  // Of differences that are a product of a few components but for the rounding of words: how many there
  // seem to be, and how many there may be, for weak ones are hidden until words are weighed. None where
  // the differences are no such product.
  struct RankOfMerge {
    std::size_t found = 0, most = 0;
  };
  RankOfMerge rank_of_merge(const Components<Real>& components) const {
    const double noise = std::sqrt(ulps_->rounding()) * edge();
    RankOfMerge rank;
    while (rank.found < components.n && components.strengths[rank.found] > 1.1 * noise) ++rank.found;
    rank.most = std::min({rank.found + 2 + rank.found / 8, most_rank, components.n - 1});
    if (rank.found == 0 || rank.found > rank.most) return {};
    // Components are not known so closely that squares of what they leave would tell it of words that are
    // finer than those of BF16.
    const double left = is_quick() ? (energy_ - components.energy(rank.most)) / size_
                                   : mean_square_left(components, rank.most);
    const bool is_merge = left < most_left * ulps_->rounding() * changed_share();
    return is_merge ? rank : RankOfMerge{};
  }
  // How many of the rows have changed at all, by some of them.
  double changed_share() const {
    std::size_t n_changed = 0, n = 0;
    for_some_rows(rows(), [&](std::size_t row) {
      n_changed += std::memcmp(source_[row], base_[row], columns() * sizeof(Word)) != 0, ++n;
    });
    return double(n_changed) / double(n);
  }

  // What components leave, less what rounding has added to the words.
  QuantizationPlan plan_of(const Components<Real>& components, double of_rounding) const {
    const double floor = of_rounding * ulps_->rounding(), least = 1e-3 * ulps_->rounding();
    const auto error = [&](double left) { return std::max(left / size_ - floor, least); };
    QuantizationPlan plan{.error_without = error(energy_), .error = std::vector<double>(components.n)};
    double left = energy_;
    for (std::size_t k = 0; k < components.n; ++k) {
      left -= components.strengths[k] * components.strengths[k];
      plan.error[k] = error(left);
    }
    plan.error_of_noise = plan.error[std::min(components.n, most_rank) / 2];
    return plan;
  }
  // The same of a refined merge, which leaves little but rounding.
  QuantizationPlan plan_of_merge(const Components<Real>& components, std::size_t rank) const {
    const double energy = components.energy(rank);
    QuantizationPlan plan{.error_without = energy / size_, .error = std::vector<double>(components.n),
                          .greatest_rank = std::min(rank, most_rank)};
    for (std::size_t k = 0; k < components.n; ++k) {
      const double left = std::max(energy - components.energy(k + 1), 0.0);
      plan.error[k] = left / size_ + 0.01 * ulps_->rounding();
    }
    return plan;
  }

  using Quantized = QuantizedComponents<Words, Real>;

  Fit fit(const Quantized& integers, QuantizationPlan& plan, Estimate& estimate,
          bool may_be_rounded) const {
    return estimated(integers.best(*ulps_, plan), estimate, may_be_rounded);
  }
  Fit estimated(LowRank low_rank, Estimate& estimate, bool may_be_rounded) const {
    Fit fit{std::move(low_rank)};
    fit.without = estimate.without();
    if (fit.low_rank.rank > 0) fit.bits = estimate.with(fit.low_rank, may_be_rounded);
    return fit;
  }

  // The quick way: what the model of sizes says, and passes over a merge where it takes much more than the
  // adapter does. Where passes do not help enough, least squares.
  Fit quick_fit() {
    Components<float>& components = svd_.found();
    const RankOfMerge rank = rank_of_merge(components);
    is_merge_ = rank.found > 0;
    // Of a small merge fewer words tell: it pays by far.
    const std::size_t n_words =
        is_merge_ ? std::clamp(rows() * columns() / 128, estimated_words / 2, 4 * estimated_words)
                  : estimated_words;
    Estimate estimate(kernels_, search_, source_, base_, n_words);
    QuantizationPlan plan = plan_of(components, 1.02);
    // What a merge leaves is hardly noise, so that finer factors tell more than the model knows.
    if (is_merge_) plan.finest_noise = -11, plan.coarsest_noise = -1;
    Fit best;
    {
      const Quantized integers(search_, components, rows(), columns());
      best = fit(integers, plan, estimate, is_merge_);
    }
    if (best.low_rank.rank == 0 || !is_merge_) return best;
    const auto takes = [&](double times, std::size_t n) {
      return best.bits > times * 16.0 * double(n) * double(rows() + columns());
    };
    if (!takes(most_of_merges, rank.found)) return best;
    if (!refine(rank.found, estimate, best, takes) || has_large_numbers()) return best;
    // To find the components again takes less than to keep them in all searches.
    if (!svd_.run()) return best;
    if (Fit other = least_squares_fit(components, rank.most); other.low_rank.rank > 0) {
      Estimate all(kernels_, search_, source_, base_, estimated_closely, counted_closely);
      best = estimated(std::move(best.low_rank), all, false);
      if (other.bits < best.bits) return other;
    }
    return best;
  }
  // Passes over all words while they make the frame smaller. Whether it still takes much more than the
  // adapter.
  template <class Takes>
  bool refine(std::size_t found, Estimate& estimate, Fit& best, const Takes& takes) {
    Components<float>& components = svd_.found();
    constexpr int below_first = middle_exponent<Words> + Words::mantissa_bits;
    const int typical = int(std::rint(std::log2(12 * ulps_->rounding()) / 2)) + below_first;
    std::size_t rank = std::min(found + 2, components.n);  // weak components may yet be hidden
    RefinementPasses<Words> passes(search_, source_, base_, svd_.part(), components);
    for (AskedRule rule : passes_of_merges) {
      rule.typical = typical, rule.is_rounded = best.low_rank.is_rounded;
      const auto weighed = ulps_->weighed(typical - rule.octaves - below_first);
      if (!passes.run(rule, rank, weighed.spread)) break;
      // Noise that stays would become copies of what is strong.
      const double noise = least_over_noise * std::sqrt(weighed.rounding) * edge();
      while (rank > 1 && components.strengths[rank - 1] < noise) --rank;
      Fit finer = fit_finer(rank, estimate);
      if (finer.low_rank.rank == 0 || finer.bits >= best.bits) break;
      best = std::move(finer);
      if (!takes(enough_of_merges, std::min(rank, found))) return false;
    }
    return takes(most_of_merges, std::min(rank, found));
  }
  Fit fit_finer(std::size_t rank, Estimate& estimate) const {
    const Components<float>& components = svd_.found();
    const Quantized integers(search_, components, rows(), columns());
    QuantizationPlan plan = plan_of_merge(components, rank);
    plan.error_of_noise = plan.error[components.n / 2];
    plan.finest_noise = -20;
    Fit best = fit(integers, plan, estimate, true);
    // The nearer the factors are, the more do finer integers tell: the model does not know how near.
    for (bool is_better = best.low_rank.rank > 0; is_better;) {
      plan.finest_noise -= 2, plan.coarsest_noise -= 2;
      Fit finer = fit(integers, plan, estimate, true);
      is_better = finer.low_rank.rank > 0 && finer.bits < best.bits;
      if (is_better) best = std::move(finer);
    }
    return best;
  }

  // The thorough way: estimates of many plans.
  Fit thorough_fit(const Components<Real>& components) {
    const RankOfMerge rank = rank_of_merge(components);
    Fit best;
    if (rank.found > 0) best = least_squares_fit(components, rank.most);
    is_merge_ = best.low_rank.rank > 0;
    Estimate estimate = close_estimate();
    const double without = estimate.without();
    const double most = is_merge_ ? best.bits : almost_all * without;
    if (!is_merge_ || is_max_ || most > clear * without) {
      Fit other = fit_components(components, estimate, most);
      if (other.bits < best.bits) best = std::move(other);
    }
    return best;
  }
  Estimate close_estimate() const {
    const bool is_small = !is_max_ && size_ < double(walked_words);
    const std::size_t n_words = (is_max_ ? 2 * estimated_closely : estimated_closely) >> is_small;
    return {kernels_, search_, source_, base_, n_words, counted_closely};
  }

  // most: bits; a fit of fewer is worth some more estimates.
  Fit fit_components(const Components<Real>& components, Estimate& estimate, double most) const {
    const Quantized integers(search_, components, rows(), columns());
    QuantizationPlan plan = plan_of(components, 1);
    plan.least_rank = 1;
    Fit best = walk(integers, plan, estimate, {.n_estimates = 4, .most = most});
    if ((!is_max_ && size_ < double(walked_words)) || best.low_rank.rank == 0) return best;
    // The model of sizes knows no rows that did not change: estimates say where to stop.
    const auto rank = std::size_t(best.low_rank.rank);
    const auto is_better = [&](std::size_t other) {
      QuantizationPlan with = plan;
      with.least_rank = with.greatest_rank = other;
      with.error_of_noise = plan.error[other / 2];
      const int n_estimates = is_max_ || is_f32 ? 3 : 1;
      Fit fit = walk(integers, with, estimate, {.n_estimates = n_estimates});
      if (fit.bits >= best.bits) return false;
      best = std::move(fit);
      return true;
    };
    constexpr std::size_t all_ranks[] = {2, 4, 8, 12, 16, 20, 24, 32, 40, 48, 56, 64};
    constexpr std::size_t some_ranks[] = {4, 8, 16, 24, 32, 48};
    const std::span<const std::size_t> ranks =
        is_max_ ? std::span<const std::size_t>(all_ranks) : std::span<const std::size_t>(some_ranks);
    const bool pays = best.bits < (1 - least_gain) * best.without;
    for (std::size_t i = ranks.size(); i-- > 0;)
      if (ranks[i] < rank && !is_better(ranks[i])) break;
    for (std::size_t i = 0; pays && i < ranks.size(); ++i)
      if (ranks[i] > rank && (ranks[i] > components.n || !is_better(ranks[i]))) break;
    return best;
  }

  Fit least_squares_fit(const Components<Real>& components, std::size_t rank) const {
    const AlternatingLeastSquares<Words> least_squares(search_, source_, base_, *ulps_);
    const auto merge = least_squares.run(components, rank, least_squares_plan<Words>(is_max_));
    if (!merge) return {};
    Estimate estimate = close_estimate();
    const Components<Real>& refined = merge->components;
    const Quantized integers(search_, refined, rows(), columns());
    QuantizationPlan plan = plan_of_merge(refined, merge->rank);
    plan.error_of_noise = plan.error[plan.greatest_rank / 2];
    plan.least_rank = 1, plan.finest_noise = -22, plan.coarsest_noise = 0;
    Fit best = walk(integers, plan, estimate,
                    {.n_estimates = 8, .finer = 3, .is_rounded = merge->is_rounded});
    // A component takes three in two parts: the weakest, which may be noise, shall not take the strong
    // ones' places.
    if (!is_bf16)
      for (const int coarser : {0, 2, 4}) {
        LowRank parts = integers.best_of_two_parts(std::min(plan.greatest_rank, most_rank / 3), coarser);
        parts.is_rounded = merge->is_rounded;
        if (Fit fit = estimated(std::move(parts), estimate, false); fit.bits < best.bits)
          best = std::move(fit);
      }
    if (best.low_rank.rank == 0) return best;
    best.low_rank.is_rounded = !best.low_rank.is_rounded;
    if (const double bits = estimate.with(best.low_rank, false); bits < best.bits)
      best.bits = bits;
    else
      best.low_rank.is_rounded = !best.low_rank.is_rounded;
    return best;
  }

  struct Walk {
    int n_estimates;
    int finer = 0;  // steps to a finer plan from the one that the model of sizes finds smallest
    double most = std::numeric_limits<double>::infinity();  // of a first fit with more there is no other
    bool is_rounded = false;
  };
  // The fit that estimates find smallest, by a walk from the plan that the model of sizes does.
  Fit walk(const Quantized& integers, const QuantizationPlan& plans, Estimate& estimate,
           const Walk& walk) const {
    const auto fit_at = [&](int noise) {
      QuantizationPlan plan = plans;
      plan.finest_noise = plan.coarsest_noise = noise;
      LowRank low_rank = integers.best(*ulps_, plan);
      low_rank.is_rounded = walk.is_rounded;
      return estimated(std::move(low_rank), estimate, false);
    };
    const int first = std::max(plans.finest_noise, integers.best_noise(*ulps_, plans) - walk.finer);
    Fit best = fit_at(first);
    int left = best.bits < walk.most ? walk.n_estimates - 1 : 0;
    for (const int step : {-1, 1}) {
      bool is_better = false;
      for (int at = first + step; left > 0 && at >= plans.finest_noise && at <= plans.coarsest_noise;
           at += step, --left) {
        Fit other = fit_at(at);
        if (other.bits >= best.bits) break;
        best = std::move(other), is_better = true;
      }
      if (is_better) break;
    }
    return best;
  }

  static constexpr std::size_t counted = std::size_t(1) << 14;  // words whose exponents are
  static constexpr std::size_t estimated_words = std::size_t(1) << 13;
  static constexpr std::size_t estimated_closely = std::size_t(1) << 16;
  static constexpr std::size_t counted_closely = 512;                 // rows of factors
  static constexpr std::size_t walked_words = std::size_t(1) << 20;   // at least, for ranks by estimates
  static constexpr double least_gain = 0.01;                          // of the size without a product
  static constexpr double almost_all = 0.4, clear = 0.2;              // of the size without a product
  static constexpr double faint = 1e-3;  // of all squares: what is left of a product that was rounded
  // Times what an adapter takes.
  static constexpr double most_of_merges = 2, enough_of_merges = 1.9;
  static constexpr double least_over_noise = 1.2;  // times the strongest component of noise
  static constexpr double most_left = 1.4;  // of a merge, times what rounding has added
  // To the differences first, then to the intervals that words were rounded from. Too fine words from the
  // start, and a few would rule before the factors are near.
  static constexpr AskedRule passes_of_merges[] = {
      {.octaves = 3},
      {.octaves = 5, .is_inside = true, .margin = 0.1f},
      {.octaves = 6, .is_inside = true, .margin = 0.1f},
      {.octaves = 7, .is_inside = true, .margin = 0.1f},
      {.octaves = 7, .is_inside = true, .margin = 0.05f},
      {.octaves = 7, .is_inside = true, .margin = 0.05f},
  };

  const Kernels& kernels_;
  const SearchKernels& search_;
  WordRows source_, base_;
  bool is_max_;
  double size_;
  RandomizedSvd<Words> svd_;
  std::optional<UlpShares<Words>> ulps_;
  double energy_ = 0;
  bool is_merge_ = false, may_have_outliers_ = false;
};

}  // namespace deltahub
