// The inner loops of the search for low rank, one set for each instruction set. All sets compute
// the same numbers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deltahub {

// The targets of a least-squares fit of products to words. A product shall be near the difference
// of its word from the base word, or in the interval of differences that round to the word.
// Intervals fit better once products are close. Fine words have more weight, because rounding
// changed them less.
struct TargetRule {
  std::int32_t typical = 0;     // the exponent field of the typical ulp
  std::int32_t octaves = 0;     // words finer than 2^-octaves of the typical one get no more weight
  bool uses_intervals = false;  // the targets are intervals, not differences
  float margin = 0;             // of an interval at both of its ends, in ulps
  float satisfied_weight = 0;   // share of a word's weight if its product is in the interval
  bool is_rounded = false;      // the product, before it is added
};

// Rows of words, of any strides in bytes.
struct WordGrid {
  const std::uint8_t* begin;
  std::ptrdiff_t row, column;
};

// A step of alternating least squares: `own` is updated for the fixed factor `given`.
template <class Real>
struct LeastSquaresStep {
  WordGrid words, base;
  std::size_t n_systems, n;  // rows and columns of the words
  std::size_t rank;
  const Real* own;    // n_systems x rank
  const Real* given;  // rank x n
  TargetRule rule;
  double* solutions;  // n_systems x rank: the change of `own`
};

// The components of a randomized SVD are a multiple of component_step, and at most most_components.
inline constexpr std::size_t component_step = 32, most_components = 96;

// A matrix, and the strides of its rows and columns, in numbers.
template <class Real>
struct Strided {
  const Real* numbers;
  std::ptrdiff_t row, column;
};

// The integer that stands for a weight of 1.
inline constexpr std::uint32_t unit_weight = 1u << 14;

struct SearchKernels {
  // Arrays are indexed by WordKind; the entry of a kind without prediction is null.

  // The greatest magnitude of finite words, as a word without its sign.
  using Greatest = std::uint32_t (*)(const std::uint8_t* words, std::size_t n);
  Greatest greatest[4];
  // differences[j] = words[j] - base[j]; 0 if one of them is not finite.
  using Subtract = void (*)(const std::uint8_t* words, const std::uint8_t* base, std::size_t n,
                            float* differences);
  Subtract subtract[4];
  using SubtractExactly = void (*)(const std::uint8_t* words, const std::uint8_t* base,
                                   std::size_t n, double* differences);
  SubtractExactly subtract_exactly[4];
  // As subtract, but also 0 if the difference overflows.
  Subtract subtract_finite[4];
  // The sum of squares of words[j] - base[j]; infinity if a word is not finite. Each square is also
  // added to by_column[j].
  using AddEnergies = float (*)(const std::uint8_t* words, const std::uint8_t* base, std::size_t n,
                                float* by_column);
  AddEnergies add_energies[4];
  // keys[j]: the class of words[j] and the symbol of deltas[j], for SymbolCounts in
  // low_rank/size_estimate.hpp. level: twice log2 of the expected magnitude of a delta times
  // 2^exponent.
  using Keys = void (*)(const std::uint8_t* deltas, const std::uint8_t* words, std::size_t n,
                        std::int32_t level, std::uint16_t* keys);
  Keys keys[4];
  // weights[j] of word j, and residuals[j]: the distance of its product from the target times the
  // weight.
  template <class Real>
  using WeightedResiduals = void (*)(const std::uint8_t* words, const std::uint8_t* base,
                                     const Real* products, std::size_t n, const TargetRule& rule,
                                     float* weights, float* residuals);
  WeightedResiduals<float> weighted_residuals[4];
  WeightedResiduals<double> weighted_residuals_exactly[4];
  using IntegerWeightedResiduals = std::uint32_t (*)(const std::uint8_t* words,
                                                     const std::uint8_t* base,
                                                     const std::int32_t* products, float unit,
                                                     std::size_t n, const TargetRule& rule,
                                                     float* residuals, std::uint32_t* weights);
  IntegerWeightedResiduals integer_weighted_residuals[4];  // see kernels/low_rank/targets.hpp
  // integers[j] = values[j] * scales[j], rounded to nearest, ties to even, limited to
  // 32767 >> shifts[j], and shifted left by shifts[j].
  template <class Real>
  using Integers = void (*)(const Real* values, const Real* scales, const std::int32_t* shifts,
                            std::size_t n, std::int16_t* integers);
  Integers<float> integers;
  Integers<double> integers_exactly;
  // keys[k]: component k as the class, and the symbol of values[k] >> shifts[k], for SymbolCounts.
  void (*factor_keys)(const std::int16_t* values, const std::int32_t* shifts, std::size_t rank,
                      std::uint16_t* keys);
  // See kernels/low_rank/whitening.hpp.
  void (*whiten)(double* squares, std::size_t n, float* transform);
  // See kernels/low_rank/least_squares_step.hpp.
  template <class Real>
  using Step = void (*)(const LeastSquaresStep<Real>& step);
  Step<float> least_squares_step[4];
  Step<double> least_squares_step_exactly[4];
  // See kernels/low_rank/int16_products.hpp.
  void (*multiply_integers)(const std::int16_t* left, std::size_t n_rows, std::size_t n_pairs,
                            const std::int16_t* pairs, std::size_t n_columns, std::int32_t* out);
  void (*quantize)(const float* values, std::size_t n, float scale, std::int16_t* out);
  void (*interleave)(const std::int16_t* first, const std::int16_t* second, std::size_t n,
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
