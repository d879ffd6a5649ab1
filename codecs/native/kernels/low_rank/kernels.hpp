// The inner loops of the search for low rank, for one instruction set each; all give the same
// numbers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deltahub {

// What words weighted_residuals of the products that are added to them. A word tells its product as exactly as the word
// itself is fine, so the small ones tell most. Products shall be near the differences (least squares), or lie
// in the intervals that words were rounded from: the second is sharper, for products that are near.
struct TargetRule {
  std::int32_t typical = 0;  // the exponent of the typical ulp
  std::int32_t octaves = 0;  // words finer than 2^-octaves of the typical one count as if they were as coarse
  bool uses_intervals = false;    // of intervals; else least squares
  float margin = 0;          // how far from an interval's ends, in ulps
  float satisfied_weight = 0;         // what a word counts whose product lies in its interval
  bool is_rounded = false;   // the product, before it is added
};

// Rows of words, of any strides in bytes.
struct WordGrid {
  const std::uint8_t* begin;
  std::ptrdiff_t row, column;
};

// One factor of a product anew, given the other.
template <class Real>
struct LeastSquaresStep {
  WordGrid words, base;
  std::size_t n_systems, n;  // rows and columns of the words
  std::size_t rank;
  const Real* own;    // n_systems x rank
  const Real* given;  // rank x n
  TargetRule rule;
  double* solutions;  // n_systems x rank: what own shall move by
};

// Directions that a randomized SVD looks at: a multiple of the one, at most the other.
inline constexpr std::size_t component_step = 32, most_components = 96;

// A matrix, and how far its rows and columns lie apart, in numbers.
template <class Real>
struct Strided {
  const Real* numbers;
  std::ptrdiff_t row, column;
};

// What a word of weight 1 adds to sums of weights; words that weigh less than 1 add nothing.
inline constexpr std::uint32_t unit_weight = 1u << 14;

struct SearchKernels {
  // For each of the first kinds of words (see WordKind); null for one without prediction.

  // The greatest magnitude of the words that are numbers, as a word without its sign.
  using Greatest = std::uint32_t (*)(const std::uint8_t* words, std::size_t n);
  Greatest greatest[4];
  // differences[j] = words[j] - base[j], 0 where either is no number.
  using Subtract = void (*)(const std::uint8_t* words, const std::uint8_t* base, std::size_t n,
                            float* differences);
  Subtract subtract[4];
  using SubtractExactly = void (*)(const std::uint8_t* words, const std::uint8_t* base,
                                   std::size_t n, double* differences);
  SubtractExactly subtract_exactly[4];
  // The same as subtract, but 0, too, where a difference is greater than any number.
  Subtract subtract_finite[4];
  // The sum of squares of words[j] - base[j], infinity where a word is no number; each is added to
  // by_column[j], too.
  using AddEnergies = float (*)(const std::uint8_t* words, const std::uint8_t* base, std::size_t n,
                                float* by_column);
  AddEnergies add_energies[4];
  // keys[j]: the class of words[j], then the cell and the sign of deltas[j]: see low_rank/size_estimate.hpp. level:
  // twice log2 of the magnitude that is expected of a delta times 2^exponent.
  using Keys = void (*)(const std::uint8_t* deltas, const std::uint8_t* words, std::size_t n,
                        std::int32_t level, std::uint16_t* keys);
  Keys keys[4];
  // weights[j] of a word, and how far its product should move, times the weight.
  template <class Real>
  using WeightedResiduals = void (*)(const std::uint8_t* words, const std::uint8_t* base, const Real* products,
                       std::size_t n, const TargetRule& rule, float* weights, float* residuals);
  WeightedResiduals<float> weighted_residuals[4];
  WeightedResiduals<double> weighted_residuals_exactly[4];
  using IntegerWeightedResiduals = std::uint32_t (*)(const std::uint8_t* words, const std::uint8_t* base,
                                 const std::int32_t* products, float unit, std::size_t n,
                                 const TargetRule& rule, float* residuals, std::uint32_t* weights);
  IntegerWeightedResiduals integer_weighted_residuals[4];  // see kernels/low_rank/targets.hpp
  // integers[j] = values[j] * scales[j], rounded to nearest, ties to even, and held within
  // 32767 >> shifts[j]; then shifted back by as much.
  template <class Real>
  using Integers = void (*)(const Real* values, const Real* scales, const std::int32_t* shifts,
                            std::size_t n, std::int16_t* integers);
  Integers<float> integers;
  Integers<double> integers_exactly;
  // keys[k]: the component k, then the cell and the sign of values[k] >> shifts[k]: see low_rank/size_estimate.hpp.
  void (*factor_keys)(const std::int16_t* values, const std::int32_t* shifts, std::size_t rank,
                      std::uint16_t* keys);
  // transform: see kernels/low_rank/whitening.hpp.
  void (*whiten)(double* squares, std::size_t n, float* transform);
  // See kernels/low_rank/least_squares_step.hpp.
  template <class Real>
  using Half = void (*)(const LeastSquaresStep<Real>& step);
  Half<float> least_squares_step[4];
  Half<double> least_squares_step_exactly[4];
  // See kernels/low_rank/int16_products.hpp.
  void (*multiply_integers)(const std::int16_t* left, std::size_t n_rows, std::size_t n_pairs,
                            const std::int16_t* pairs, std::size_t n_columns, std::int32_t* out);
  void (*quantize)(const float* values, std::size_t n, float scale, std::int16_t* out);
  void (*interleave)(const std::int16_t* numbers, const std::int16_t* others, std::size_t n,
                     std::int16_t* out);
  // See kernels/low_rank/projection.hpp.
  template <class Real>
  using Multiply = void (*)(const Strided<Real>& a, std::size_t n_rows, std::size_t n_inner,
                            const Real* b, std::size_t n_columns, Real* out, bool is_sum);
  Multiply<float> multiply;
  Multiply<double> multiply_exactly;
  template <class Real>
  using AddSquares = void (*)(const Real* x, std::size_t n, std::size_t n_columns, double* squares);
  AddSquares<float> add_squares;
  AddSquares<double> add_squares_exactly;
  double (*energy)(const float* numbers, std::size_t n);
  void (*diagonalize)(double* rows, std::size_t n, double cosine_bound, double* transform,
                      double* values);
};

extern const SearchKernels portable_search;
#ifdef __x86_64__
extern const SearchKernels avx2_search;
extern const SearchKernels avx512_search;
#endif

}  // namespace deltahub
