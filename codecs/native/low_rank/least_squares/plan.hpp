// The steps of alternating least squares that each dtype and effort takes.
#pragma once

#include <cstddef>
#include <span>

#include "base/words.hpp"
#include "kernels/low_rank/kernels.hpp"

namespace deltahub {

// over_relaxation: a factor moves by this times its least-squares solution. Above 1 because the
// solution is too small while the other factor is not yet fitted.
struct PlannedStep {
  TargetRule rule;
  double over_relaxation = 1;
};

// The order of steps: first on_sample, each step for both factors, on a sample of the rows. Then
// on_all, on all rows: its step `first` for the left factor, its other steps for the right factor
// and the left factor in turn. if_rounded replaces on_all if the product was rounded before it was
// added.
struct LeastSquaresPlan {
  struct OnAll {
    PlannedStep first;
    std::span<const PlannedStep> in_turn;
  };
  std::span<const PlannedStep> on_sample;
  OnAll on_all, if_rounded;
  std::size_t sampled_words;
};

namespace detail {

constexpr PlannedStep over_relaxed(int octaves) { return {{.octaves = octaves}, 1.1}; }
constexpr PlannedStep exact(int octaves) { return {{.octaves = octaves}, 1}; }
constexpr PlannedStep to_intervals(int octaves, float margin, float satisfied_weight,
                                   double over_relaxation = 1) {
  return {{.octaves = octaves,
           .uses_intervals = true,
           .margin = margin,
           .satisfied_weight = satisfied_weight},
          over_relaxation};
}

// `octaves` grows from step to step, because with many octaves a few fine words would dominate the
// fit before the factors are close.
inline constexpr PlannedStep default_sample[] = {over_relaxed(2)};
inline constexpr PlannedStep default_all[] = {
    over_relaxed(4), over_relaxed(5), over_relaxed(6), over_relaxed(7),
    to_intervals(8, 0.1f, 0.05f, 1.2), to_intervals(8, 0.05f, 0.03f, 1.2)};
inline constexpr PlannedStep max_sample[] = {exact(2)};
inline constexpr PlannedStep max_all[] = {
    exact(3), exact(5), exact(6), exact(7),
    to_intervals(8, 0.1f, 0.1f), to_intervals(8, 0.1f, 0.1f),
    to_intervals(8, 0.1f, 0.03f), to_intervals(8, 0.1f, 0.03f),
    to_intervals(8, 0.05f, 0.03f), to_intervals(8, 0.05f, 0.03f),
    to_intervals(8, 0.02f, 0.01f), to_intervals(8, 0.02f, 0.01f),
    to_intervals(8, 0.02f, 0.01f), to_intervals(8, 0.02f, 0.01f)};
// For products that were rounded to BF16 before they were added. Their intervals are wide, so a few
// steps reach them.
inline constexpr PlannedStep rounded_all[] = {
    over_relaxed(4), to_intervals(4, 0.1f, 0.075f, 1.2), to_intervals(7, 0.1f, 0.027f, 1.2),
    to_intervals(11, 0.1f, 0.05f, 0.9)};
// Two octaves, because a merge in F32 also rounds its sums of products by about this much.
inline constexpr PlannedStep f32_sample[] = {exact(2), exact(2)};

}  // namespace detail

template <class Words>
constexpr LeastSquaresPlan least_squares_plan(bool is_max) {
  using namespace detail;
  const std::size_t sampled_words = std::size_t(1) << (is_max ? 17 : 16);
  if (Words::word_bits == 32) {
    const LeastSquaresPlan::OnAll last{exact(2), {}};
    return {f32_sample, last, last, sampled_words};
  }
  if (is_max) return {max_sample, {exact(2), max_all}, {exact(2), max_all}, sampled_words};
  const LeastSquaresPlan::OnAll unrounded{over_relaxed(3), default_all};
  const LeastSquaresPlan::OnAll rounded{exact(3), rounded_all};
  return {default_sample, unrounded, Words::exponent_bits == 8 ? rounded : unrounded,
          sampled_words};
}

}  // namespace deltahub
