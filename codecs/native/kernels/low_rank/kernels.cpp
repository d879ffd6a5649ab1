// One set of kernels for the search. It is compiled once for each instruction set, as
// kernels/kernels.cpp.
#include "kernels/low_rank/kernels.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/words.hpp"
#include "kernels/low_rank/estimate_classes.hpp"
#include "kernels/low_rank/int16_products.hpp"
#include "kernels/low_rank/least_squares_step.hpp"
#include "kernels/low_rank/projection.hpp"
#include "kernels/low_rank/targets.hpp"
#include "kernels/low_rank/whitening.hpp"

DELTAHUB_BEGIN
namespace {

template <class Words>
std::uint32_t greatest(const std::uint8_t* words, std::size_t n) {
  using Word = typename Words::Word;
  Word most = 0;
  for (std::size_t j = 0; j < n; ++j) {
    const Word magnitude = Word(load<Word>(words + j * sizeof(Word)) & Word(Words::top - 1));
    const Word finite = Word(magnitude & -Word(magnitude < Word(infinite<Words>)));
    most = most > finite ? most : finite;
  }
  return most;
}

template <class Words, class Real>
void subtract(const std::uint8_t* words, const std::uint8_t* base, std::size_t n, Real* out) {
  using Word = typename Words::Word;
  for (std::size_t j = 0; j < n; ++j)
    out[j] = difference<Words, Real>(load<Word>(words + j * sizeof(Word)),
                                     load<Word>(base + j * sizeof(Word)));
}

template <class Words>
void subtract_finite(const std::uint8_t* words, const std::uint8_t* base, std::size_t n,
                     float* out) {
  using Word = typename Words::Word;
  for (std::size_t j = 0; j < n; ++j) {
    const auto word = load<Word>(words + j * sizeof(Word)),
               from = load<Word>(base + j * sizeof(Word));
    // number() is not enough for words with fewer exponent bits than a float: it gives finite
    // numbers even for infinities and NaNs.
    const float exact = Words::exponent_bits < 8 ? difference<Words, float>(word, from)
                                                 : number<Words>(word) - number<Words>(from);
    const auto bits = std::bit_cast<std::uint32_t>(exact);
    const std::uint32_t is_finite = 0u - std::uint32_t((bits & 0x7fffffff) < 0x7f800000);
    out[j] = std::bit_cast<float>(bits & is_finite);
  }
}

template <class Words>
float add_energies(const std::uint8_t* words, const std::uint8_t* base, std::size_t n,
                   float* by_column) {
  using Word = typename Words::Word;
  constexpr std::size_t together = 256, n_sums = 16;
  float squares[together], sums[n_sums] = {};
  Word most = 0;
  for (std::size_t begin = 0; begin < n; begin += together) {
    const std::size_t n_here = std::min(together, n - begin);
    const std::uint8_t* const here = words + begin * sizeof(Word);
    subtract<Words>(here, base + begin * sizeof(Word), n_here, squares);
    for (std::size_t j = 0; j < n_here; ++j) {
      squares[j] *= squares[j];
      by_column[begin + j] += squares[j];
      const auto exponent = Word(load<Word>(here + j * sizeof(Word)) & Word(infinite<Words>));
      most = most > exponent ? most : exponent;
    }
    std::fill(squares + n_here, squares + together, 0.0f);
    for (std::size_t j = 0; j < together; j += n_sums)
      for (std::size_t k = 0; k < n_sums; ++k) sums[k] += squares[j + k];
  }
  for (std::size_t k = 1; k < n_sums; ++k) sums[0] += sums[k];
  return most == Word(infinite<Words>) ? std::numeric_limits<float>::infinity() : sums[0];
}

template <class Words>
void keys(const std::uint8_t* deltas, const std::uint8_t* words, std::size_t n, std::int32_t level,
          std::uint16_t* out) {
  using Word = typename Words::Word;
  for (std::size_t j = 0; j < n; ++j) {
    const auto exponent =
        std::int32_t(load<Word>(words + j * sizeof(Word)) >> Words::mantissa_bits) &
        ((1 << Words::exponent_bits) - 1);
    const std::int32_t z = level - 2 * std::max(exponent, 1);
    const std::int32_t bounded = std::min(std::max(z, least_class), most_class);
    const auto delta =
        std::int32_t(std::make_signed_t<Word>(load<Word>(deltas + j * sizeof(Word))));
    out[j] = std::uint16_t((bounded - least_class) * std::int32_t(n_estimate_symbols) +
                           estimate_symbol(delta));
  }
}

template <class Real>
void integers(const Real* values, const Real* scales, const std::int32_t* shifts, std::size_t n,
              std::int16_t* out) {
  // A sum with this number is rounded, because its ulp is 1.
  constexpr Real whole = sizeof(Real) == 4 ? Real(3 << 22) : Real(std::int64_t(3) << 51);
  for (std::size_t j = 0; j < n; ++j) {
    const auto most = Real(32767 >> shifts[j]);
    const Real value = values[j] * scales[j];
    const Real below = value < most ? value : most;  // also replaces NaN
    const Real within = below > -most ? below : -most;
    const Real sum = within + whole;
    out[j] = std::int16_t(std::int32_t(sum - whole) << shifts[j]);
  }
}

void factor_keys(const std::int16_t* values, const std::int32_t* shifts, std::size_t rank,
                 std::uint16_t* keys) {
  for (std::size_t k = 0; k < rank; ++k)
    keys[k] = std::uint16_t(std::int32_t(k * n_estimate_symbols) +
                            estimate_symbol(std::int32_t(values[k]) >> shifts[k]));
}

}  // namespace
DELTAHUB_END

namespace deltahub {

#define DELTAHUB_SEARCH_OF(isa) isa##_search
#define DELTAHUB_SEARCH(isa) DELTAHUB_SEARCH_OF(isa)
#define DELTAHUB_OF_FLOATS(kernel) {nullptr, kernel<F32Words>, kernel<F16Words>, kernel<Bf16Words>}
#define DELTAHUB_OF_REALS(kernel, real) \
  {nullptr, kernel<F32Words, real>, kernel<F16Words, real>, kernel<Bf16Words, real>}

const SearchKernels DELTAHUB_SEARCH(DELTAHUB_ISA) = {
    .greatest = DELTAHUB_OF_FLOATS(greatest),
    .subtract = DELTAHUB_OF_REALS(subtract, float),
    .subtract_exactly = DELTAHUB_OF_REALS(subtract, double),
    .subtract_finite = DELTAHUB_OF_FLOATS(subtract_finite),
    .add_energies = DELTAHUB_OF_FLOATS(add_energies),
    .keys = DELTAHUB_OF_FLOATS(keys),
    .weighted_residuals = DELTAHUB_OF_REALS(weighted_residuals, float),
    .weighted_residuals_exactly = DELTAHUB_OF_REALS(weighted_residuals, double),
    .integer_weighted_residuals = DELTAHUB_OF_FLOATS(integer_weighted_residuals),
    .integers = integers<float>,
    .integers_exactly = integers<double>,
    .factor_keys = factor_keys,
    .whiten = whiten<float>,
    .least_squares_step = DELTAHUB_OF_REALS(least_squares_step, float),
    .least_squares_step_exactly = DELTAHUB_OF_REALS(least_squares_step, double),
    .multiply_integers = multiply_integers,
    .quantize = quantize,
    .interleave = interleave,
    .multiply = multiply<float>,
    .multiply_exactly = multiply<double>,
    .add_squares = add_squares<float>,
    .add_squares_exactly = add_squares<double>,
    .energy = energy,
    .diagonalize = diagonalize,
};

}  // namespace deltahub
