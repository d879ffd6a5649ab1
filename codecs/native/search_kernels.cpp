// One set of kernels for the search; built once for each instruction set, as kernels.cpp is.
#include "search_kernels.hpp"

#include <algorithm>
#include <bit>

#include "trial_keys.hpp"
#include "words.hpp"

DELTAHUB_BEGIN
namespace {

template <class Words>
constexpr std::uint32_t infinite = ((1u << Words::exponent_bits) - 1) << Words::mantissa_bits;

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

// The number that a finite word is.
template <class Words>
inline float number(std::uint32_t word) {
  if constexpr (Words::word_bits == 32) return std::bit_cast<float>(word);
  if constexpr (Words::exponent_bits == 8) return std::bit_cast<float>(word << 16);
  constexpr int mantissa_bits = Words::mantissa_bits, rebased = 127 - middle_exponent<Words>;
  const std::uint32_t magnitude = word & std::uint32_t(Words::top - 1);
  const std::uint32_t normal = (magnitude << (23 - mantissa_bits)) + (std::uint32_t(rebased) << 23);
  constexpr float least =
      std::bit_cast<float>(std::uint32_t(rebased + 1 - mantissa_bits) << 23);
  const auto subnormal = std::bit_cast<std::uint32_t>(float(std::int32_t(magnitude)) * least);
  const std::uint32_t is_normal = 0u - std::uint32_t(magnitude >> mantissa_bits > 0);
  const std::uint32_t size = (normal & is_normal) | (subnormal & ~is_normal);
  return std::bit_cast<float>(size | (word & std::uint32_t(Words::top)) << 16);
}

template <class Words, class Real>
void subtract(const std::uint8_t* words, const std::uint8_t* base, std::size_t n, Real* out) {
  using Word = typename Words::Word;
  using Bits = std::conditional_t<sizeof(Real) == 4, std::uint32_t, std::uint64_t>;
  for (std::size_t j = 0; j < n; ++j) {
    const std::uint32_t to = load<Word>(words + j * sizeof(Word));
    const std::uint32_t from = load<Word>(base + j * sizeof(Word));
    const Bits are_numbers = -Bits((to & infinite<Words>) != infinite<Words>) &
                             -Bits((from & infinite<Words>) != infinite<Words>);
    const Real difference = Real(number<Words>(to)) - Real(number<Words>(from));
    out[j] = std::bit_cast<Real>(std::bit_cast<Bits>(difference) & are_numbers);  // for vectors
  }
}

template <class Words>
void keys(const std::uint8_t* deltas, const std::uint8_t* words, std::size_t n, std::int32_t level,
          std::uint16_t* out) {
  using Word = typename Words::Word;
  for (std::size_t j = 0; j < n; ++j) {
    const auto exponent = std::int32_t(load<Word>(words + j * sizeof(Word)) >>
                                       Words::mantissa_bits) &
                          ((1 << Words::exponent_bits) - 1);
    const std::int32_t z = level - 2 * std::max(exponent, 1);
    const std::int32_t bounded = std::min(std::max(z, least_class), most_class);
    const auto delta = std::int32_t(
        std::make_signed_t<Word>(load<Word>(deltas + j * sizeof(Word))));
    out[j] = std::uint16_t((bounded - least_class) * std::int32_t(n_trial_symbols) +
                           trial_symbol(delta));
  }
}

}  // namespace
DELTAHUB_END

namespace deltahub {

#define DELTAHUB_SEARCH_OF(isa) isa##_search
#define DELTAHUB_SEARCH(isa) DELTAHUB_SEARCH_OF(isa)
#define DELTAHUB_OF_FLOATS(kernel) \
  {nullptr, kernel<F32Words>, kernel<F16Words>, kernel<Bf16Words>}
#define DELTAHUB_OF_REALS(kernel, real)                                       \
  {nullptr, kernel<F32Words, real>, kernel<F16Words, real>, kernel<Bf16Words, real>}

const SearchKernels DELTAHUB_SEARCH(DELTAHUB_ISA) = {
    .greatest = DELTAHUB_OF_FLOATS(greatest),
    .subtract = DELTAHUB_OF_REALS(subtract, float),
    .subtract_exactly = DELTAHUB_OF_REALS(subtract, double),
    .keys = DELTAHUB_OF_FLOATS(keys),
};

}  // namespace deltahub
