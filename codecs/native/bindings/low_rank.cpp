#include "bindings/parts.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "kernels/codec_interface.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/prediction/prediction.hpp"
#include "low_rank/search.hpp"
#include "low_rank/size_estimate.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace deltahub {
namespace {

// Types in the stub. Callers pass NumPy arrays.
#define WORDS "numpy.typing.NDArray[numpy.unsignedinteger[typing.Any]]"
#define ARRAY(numbers) "numpy.typing.NDArray[numpy." numbers "]"

template <class T>
using PlainMatrix = nb::ndarray<T, nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
// Words of any kind; their size is checked later.
using Words2 = nb::ndarray<nb::ro, nb::numpy, nb::ndim<2>, nb::device::cpu>;

using Rows = WordRows;

void require_predicted(WordKind kind, const Words2& words) {
  require(kind == WordKind::f32 || kind == WordKind::f16 || kind == WordKind::bf16,
          "words that cannot be predicted");
  require(words.itemsize() == (kind == WordKind::f32 ? 4 : 2), "words of another size");
}

Rows rows_of(WordKind kind, const Words2& words) {
  require_predicted(kind, words);
  require(words.stride(1) == 1 || words.shape(1) <= 1, "rows must be contiguous");
  return {static_cast<const std::uint8_t*>(words.data()),
          std::ptrdiff_t(words.stride(0)) * std::ptrdiff_t(words.itemsize()), words.shape(0),
          words.shape(1)};
}

template <class Real, class Kernels>
void weighted_residuals(int kind, const Words2& words, const Words2& base,
                        const PlainMatrix<const Real>& products, const PlainMatrix<float>& weights,
                        const PlainMatrix<float>& residuals, const TargetRule& rule,
                        const Kernels& kernels) {
  const Rows to = rows_of(word_kind(kind), words), from = rows_of(word_kind(kind), base);
  const auto fits = [&](const auto& other) {
    return other.shape(0) == to.rows && other.shape(1) == to.columns;
  };
  require(from.rows == to.rows && from.columns == to.columns && fits(products) && fits(weights) &&
              fits(residuals),
          "shapes differ");
  nb::gil_scoped_release unlocked;
  for (std::size_t i = 0; i < to.rows; ++i) {
    const std::size_t at = i * to.columns;
    kernels[kind](to[i], from[i], products.data() + at, to.columns, rule, weights.data() + at,
                  residuals.data() + at);
  }
}

template <class Real>
void bind_weighted_residuals(nb::module_& m, const nb::sig& signature, const char* about) {
  m.def(
      "weighted_residuals",
      [](int kind, const Words2& words, const Words2& base, const PlainMatrix<const Real>& products,
         int typical, int octaves, std::optional<float> margin, float satisfied_weight,
         bool is_rounded, const PlainMatrix<float>& weights, const PlainMatrix<float>& residuals) {
        const TargetRule rule{typical, octaves, margin.has_value(), margin.value_or(0),
                              satisfied_weight, is_rounded};
        if constexpr (sizeof(Real) == sizeof(float))
          weighted_residuals(kind, words, base, products, weights, residuals, rule,
                             chosen_search().weighted_residuals);
        else
          weighted_residuals(kind, words, base, products, weights, residuals, rule,
                             chosen_search().weighted_residuals_exactly);
      },
      "kind"_a, "words"_a, "base"_a, "products"_a.noconvert(), "typical"_a, "octaves"_a,
      "margin"_a.none(), "satisfied_weight"_a, "is_rounded"_a, "weights"_a.noconvert(),
      "residuals"_a.noconvert(), signature, about);
}

// Words of any strides.
WordGrid grid_of(const Words2& words) {
  const auto size = std::ptrdiff_t(words.itemsize());
  return {static_cast<const std::uint8_t*>(words.data()), std::ptrdiff_t(words.stride(0)) * size,
          std::ptrdiff_t(words.stride(1)) * size};
}

template <class Real, class Kernels>
void least_squares_step(WordKind kind, const Words2& words, const Words2& base,
               const PlainMatrix<const Real>& own, const PlainMatrix<const Real>& given,
               const TargetRule& rule, const PlainMatrix<double>& solutions,
               const Kernels& kernels) {
  const std::size_t n_systems = words.shape(0), n = words.shape(1), rank = own.shape(1);
  require_predicted(kind, words), require_predicted(kind, base);
  require(base.shape(0) == n_systems && base.shape(1) == n && own.shape(0) == n_systems &&
              given.shape(0) == rank && given.shape(1) == n && solutions.shape(0) == n_systems &&
              solutions.shape(1) == rank,
          "shapes differ");
  require(n > 0 && rank > 0, "there must be at least one column of words and one component");
  nb::gil_scoped_release unlocked;
  kernels[int(kind)]({grid_of(words), grid_of(base), n_systems, n, rank, own.data(), given.data(),
                      rule, solutions.data()});
}

template <class Real>
void bind_least_squares_step(nb::module_& m, const nb::sig& signature, const char* about) {
  m.def(
      "least_squares_step",
      [](int kind, const Words2& words, const Words2& base, const PlainMatrix<const Real>& own,
         const PlainMatrix<const Real>& given, int typical, int octaves,
         std::optional<float> margin, float satisfied_weight, bool is_rounded,
         const PlainMatrix<double>& solutions) {
        const TargetRule rule{typical, octaves, margin.has_value(), margin.value_or(0),
                              satisfied_weight, is_rounded};
        const WordKind words_kind = word_kind(kind);
        if constexpr (sizeof(Real) == sizeof(float))
          least_squares_step(words_kind, words, base, own, given, rule, solutions,
                    chosen_search().least_squares_step);
        else
          least_squares_step(words_kind, words, base, own, given, rule, solutions,
                    chosen_search().least_squares_step_exactly);
      },
      "kind"_a, "words"_a, "base"_a, "own"_a.noconvert(), "given"_a.noconvert(), "typical"_a,
      "octaves"_a, "margin"_a.none(), "satisfied_weight"_a, "is_rounded"_a,
      "solutions"_a.noconvert(), signature, about);
}

double estimated_bits(int kind, const Words2& words, const Words2& base,
                  const PlainMatrix<const std::int16_t>& left,
                  const PlainMatrix<const std::int16_t>& right, int floor, bool is_rounded) {
  const Rows to = rows_of(word_kind(kind), words), from = rows_of(word_kind(kind), base);
  require(to.rows == from.rows && to.columns == from.columns, "shapes differ");
  const std::size_t rank = left.shape(1);
  require(left.shape(0) == to.rows && right.shape(0) == rank && right.shape(1) == to.columns,
          "factors of another shape");
  require(to.columns > 0, "rows without words");
  nb::gil_scoped_release unlocked;
  const FactorRows factors{rank, floor, is_rounded, left.data(), right.data()};
  return with_words(WordKind(kind), [&]<class Words>(Words) -> double {
    if constexpr (guard_bits(Words::mantissa_bits) > 0) {
      require(floor >= 1 && floor < (1 << Words::exponent_bits) - 1, "a floor that is no exponent");
      ResidualEntropy<Words> entropy(*chosen_kernels(), chosen_search(), to.columns);
      return entropy.bits(to, from, to.rows, factors);
    }
    return 0;
  });
}

double bits_of_factors(const PlainMatrix<const std::int16_t>& values) {
  require(values.shape(1) <= n_estimate_classes, "too many components");
  nb::gil_scoped_release unlocked;
  return factor_bits(chosen_search(), values.data(), values.shape(0), values.shape(1));
}

// (left, right, floor, is_rounded, is_widened): rows x rank and rank x columns numbers of 16 bits.
using Found = std::tuple<nb::bytes, nb::bytes, int, bool, bool>;

Found found_low_rank(int kind, const Words2& words, const Words2& base, int effort) {
  const Rows to = rows_of(word_kind(kind), words), from = rows_of(word_kind(kind), base);
  require(to.rows == from.rows && to.columns == from.columns, "shapes differ");
  require(effort == int(Effort::balanced) || effort == int(Effort::max),
          "the effort must be 2 (default) or 3 (max)");
  const std::size_t size = to.rows * to.columns * words.itemsize();
  const auto follow = [&](const Rows& rows) {
    return rows.rows <= 1 || rows.stride * std::ptrdiff_t(rows.rows) == std::ptrdiff_t(size);
  };
  require(follow(to) && follow(from), "rows must follow one another");
  const FoundProduct found = [&] {
    nb::gil_scoped_release unlocked;
    return find_low_rank(*chosen_kernels(), chosen_search(), WordKind(kind), {to.begin, size},
                         {from.begin, size}, to.rows, to.columns, Effort(effort) == Effort::max);
  }();
  const auto bytes_of = [](const std::vector<std::int16_t>& numbers) {
    return nb::bytes(numbers.data(), numbers.size() * sizeof(std::int16_t));
  };
  const LowRank& product = found.low_rank;
  return {bytes_of(product.left), bytes_of(product.right), product.floor, product.is_rounded,
          found.is_widened};
}

}  // namespace

void bind_search(nb::module_& m) {
#define WEIGHTED_RESIDUALS(real)                                                          \
  nb::sig("def weighted_residuals(kind: int, words: " WORDS ", base: " WORDS              \
          ", products: " ARRAY(real) ", typical: int, octaves: int, margin: float | None," \
          " satisfied_weight: float, is_rounded: bool, weights: " ARRAY("float32")        \
          ", residuals: " ARRAY("float32") ") -> None")
  bind_weighted_residuals<float>(
      m, WEIGHTED_RESIDUALS("float32"),
      "Sets the weights of words, and residuals: the distances of products from their targets\n"
      "times the weights. typical: the exponent field of the typical ulp. octaves, margin,\n"
      "satisfied_weight: see TargetRule in kernels/low_rank/kernels.hpp; without a margin the\n"
      "target is the difference from the base. is_rounded: see prediction.LowRank. ValueError\n"
      "unless all arrays have the same shape.");
  bind_weighted_residuals<double>(m, WEIGHTED_RESIDUALS("float64"),
                                  "The same with float64 products.");
#define LEAST_SQUARES_STEP(real)                                                           \
  nb::sig("def least_squares_step(kind: int, words: " WORDS ", base: " WORDS               \
          ", own: " ARRAY(real) ", given: " ARRAY(real) ", typical: int, octaves: int,"     \
          " margin: float | None, satisfied_weight: float, is_rounded: bool, solutions: "   \
          ARRAY("float64") ") -> None")
  bind_least_squares_step<float>(
      m, LEAST_SQUARES_STEP("float32"),
      "Sets `solutions` to the change of `own` (a row for each row of words) that brings own @\n"
      "given (a column for each column of words) closest to the targets of `weighted_residuals`.\n"
      "Words may have any strides. In the normal equations, words that are no finer than most of\n"
      "their row have the squares of the mean column, and diagonals have a small ridge.\n"
      "ValueError if shapes do not fit.");
  bind_least_squares_step<double>(m, LEAST_SQUARES_STEP("float64"),
                                  "The same with float64 products.");
  m.def("estimated_bits", &estimated_bits, "kind"_a, "words"_a, "base"_a, "left"_a, "right"_a,
        "floor"_a, "is_rounded"_a,
        nb::sig("def estimated_bits(kind: int, words: " WORDS ", base: " WORDS ", left: " ARRAY(
            "int16") ", right: " ARRAY("int16") ", floor: int, is_rounded: bool) -> float"),
        "An estimate of the bits that words take if they are predicted from the base by factors:\n"
        "left is rows x rank, right rank x columns; rank 0 predicts the base. floor, is_rounded:\n"
        "see prediction.LowRank. ValueError if shapes do not fit.");
  m.def(
      "find_low_rank", &found_low_rank, "kind"_a, "words"_a, "base"_a, "effort"_a,
      nb::sig("def find_low_rank(kind: int, words: " WORDS ", base: " WORDS
              ", effort: int) -> tuple[bytes, bytes, int, bool, bool]"),
      "A product of low rank that makes words of BF16, F16 or F32 smaller, given the base.\n"
      "Returns its left and right factors, rows x rank and rank x columns of int16, empty if none\n"
      "pays; its floor; whether it is rounded before it is added; and whether the words are F32\n"
      "whose values are all BF16 or F16 numbers, and it was found in these. effort: 2 or 3. The\n"
      "result is the same on every machine. ValueError unless words and base are C-contiguous and\n"
      "of the same shape.");
  m.def("factor_bits", &bits_of_factors, "values"_a,
        "An estimate of the bits that a factor takes; each column is one component.");
}

}  // namespace deltahub
