#include "bindings/low_rank.hpp"

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

// Stubs name what callers hold.
#define WORDS "numpy.typing.NDArray[numpy.unsignedinteger[typing.Any]]"
#define ARRAY(numbers) "numpy.typing.NDArray[numpy." numbers "]"

template <class T>
using PlainMatrix = nb::ndarray<T, nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
// Of whichever word the kind has.
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

std::uint32_t greatest_magnitude(int kind, const Words2& words) {
  const Rows rows = rows_of(word_kind(kind), words);
  const auto greatest = chosen_search().greatest[kind];
  nb::gil_scoped_release unlocked;
  std::uint32_t most = 0;
  for (std::size_t i = 0; i < rows.rows; ++i)
    most = std::max(most, greatest(rows[i], rows.columns));
  return most;
}

template <class Real, class Kernels>
void subtract(int kind, const Words2& words, const Words2& base, const PlainMatrix<Real>& out,
              const Kernels& kernels) {
  const Rows to = rows_of(word_kind(kind), words), from = rows_of(word_kind(kind), base);
  require(to.rows == from.rows && to.columns == from.columns && out.shape(0) == to.rows &&
              out.shape(1) == to.columns,
          "shapes differ");
  nb::gil_scoped_release unlocked;
  for (std::size_t i = 0; i < to.rows; ++i)
    kernels[kind](to[i], from[i], to.columns, out.data() + i * to.columns);
}

void line_energies(int kind, const Words2& words, const Words2& base,
                   const PlainMatrix<float>& by_row, const PlainMatrix<float>& by_column) {
  const Rows to = rows_of(word_kind(kind), words), from = rows_of(word_kind(kind), base);
  require(to.rows == from.rows && to.columns == from.columns && by_row.shape(0) == to.rows &&
              by_row.shape(1) == 1 && by_column.shape(0) == 1 && by_column.shape(1) == to.columns,
          "shapes differ");
  const auto add_energies = chosen_search().add_energies[kind];
  nb::gil_scoped_release unlocked;
  std::fill_n(by_column.data(), to.columns, 0.0f);
  for (std::size_t i = 0; i < to.rows; ++i)
    by_row.data()[i] = add_energies(to[i], from[i], to.columns, by_column.data());
}

template <class Real, class Kernels>
void ask(int kind, const Words2& words, const Words2& base, const PlainMatrix<const Real>& products,
         const PlainMatrix<float>& weights, const PlainMatrix<float>& pulls, const AskedRule& rule,
         const Kernels& kernels) {
  const Rows to = rows_of(word_kind(kind), words), from = rows_of(word_kind(kind), base);
  const auto fits = [&](const auto& other) {
    return other.shape(0) == to.rows && other.shape(1) == to.columns;
  };
  require(from.rows == to.rows && from.columns == to.columns && fits(products) && fits(weights) &&
              fits(pulls),
          "shapes differ");
  nb::gil_scoped_release unlocked;
  for (std::size_t i = 0; i < to.rows; ++i) {
    const std::size_t at = i * to.columns;
    kernels[kind](to[i], from[i], products.data() + at, to.columns, rule, weights.data() + at,
                  pulls.data() + at);
  }
}

template <class Real>
void bind_ask(nb::module_& m, const nb::sig& signature, const char* about) {
  m.def(
      "ask",
      [](int kind, const Words2& words, const Words2& base,
         const PlainMatrix<const Real>& products, int typical, int octaves,
         std::optional<float> margin, float inertia, bool is_rounded,
         const PlainMatrix<float>& weights, const PlainMatrix<float>& pulls) {
        const AskedRule rule{typical, octaves, margin.has_value(), margin.value_or(0), inertia,
                             is_rounded};
        if constexpr (sizeof(Real) == sizeof(float))
          ask(kind, words, base, products, weights, pulls, rule, chosen_search().ask);
        else
          ask(kind, words, base, products, weights, pulls, rule, chosen_search().ask_exactly);
      },
      "kind"_a, "words"_a, "base"_a, "products"_a.noconvert(), "typical"_a, "octaves"_a,
      "margin"_a.none(), "inertia"_a, "is_rounded"_a, "weights"_a.noconvert(),
      "pulls"_a.noconvert(), signature, about);
}

// Words of any strides.
WordGrid grid_of(const Words2& words) {
  const auto size = std::ptrdiff_t(words.itemsize());
  return {static_cast<const std::uint8_t*>(words.data()), std::ptrdiff_t(words.stride(0)) * size,
          std::ptrdiff_t(words.stride(1)) * size};
}

template <class Real, class Kernels>
void half_step(WordKind kind, const Words2& words, const Words2& base,
               const PlainMatrix<const Real>& own, const PlainMatrix<const Real>& given,
               const AskedRule& rule, const PlainMatrix<double>& solutions,
               const Kernels& kernels) {
  const std::size_t n_systems = words.shape(0), n = words.shape(1), rank = own.shape(1);
  require_predicted(kind, words), require_predicted(kind, base);
  require(base.shape(0) == n_systems && base.shape(1) == n && own.shape(0) == n_systems &&
              given.shape(0) == rank && given.shape(1) == n && solutions.shape(0) == n_systems &&
              solutions.shape(1) == rank,
          "shapes differ");
  require(n > 0 && rank > 0, "nothing is asked");
  nb::gil_scoped_release unlocked;
  kernels[int(kind)]({grid_of(words), grid_of(base), n_systems, n, rank, own.data(), given.data(),
                      rule, solutions.data()});
}

template <class Real>
void bind_half_step(nb::module_& m, const nb::sig& signature, const char* about) {
  m.def(
      "half_step",
      [](int kind, const Words2& words, const Words2& base, const PlainMatrix<const Real>& own,
         const PlainMatrix<const Real>& given, int typical, int octaves,
         std::optional<float> margin, float inertia, bool is_rounded,
         const PlainMatrix<double>& solutions) {
        const AskedRule rule{typical, octaves, margin.has_value(), margin.value_or(0), inertia,
                             is_rounded};
        const WordKind words_kind = word_kind(kind);
        if constexpr (sizeof(Real) == sizeof(float))
          half_step(words_kind, words, base, own, given, rule, solutions,
                    chosen_search().half_step);
        else
          half_step(words_kind, words, base, own, given, rule, solutions,
                    chosen_search().half_step_exactly);
      },
      "kind"_a, "words"_a, "base"_a, "own"_a.noconvert(), "given"_a.noconvert(), "typical"_a,
      "octaves"_a, "margin"_a.none(), "inertia"_a, "is_rounded"_a, "solutions"_a.noconvert(),
      signature, about);
}

double trial_bits(int kind, const Words2& words, const Words2& base,
                  const PlainMatrix<const std::int16_t>& left,
                  const PlainMatrix<const std::int16_t>& right, int floor, bool is_rounded) {
  const Rows to = rows_of(word_kind(kind), words), from = rows_of(word_kind(kind), base);
  require(to.rows == from.rows && to.columns == from.columns, "shapes differ");
  const std::size_t rank = left.shape(1);
  require(left.shape(0) == to.rows && right.shape(0) == rank && right.shape(1) == to.columns,
          "factors of another shape");
  require(to.columns > 0, "rows without words");
  nb::gil_scoped_release unlocked;
  const TrialFactors factors{rank, floor, is_rounded, left.data(), right.data()};
  return with_words(WordKind(kind), [&]<class Words>(Words) -> double {
    if constexpr (guard_bits(Words::mantissa_bits) > 0) {
      require(floor >= 1 && floor < (1 << Words::exponent_bits) - 1, "a floor that is no exponent");
      Trial<Words> trial(*chosen_kernels(), chosen_search(), to.columns);
      return trial.bits(to, from, to.rows, factors);
    }
    return 0;
  });
}

double bits_of_factors(const PlainMatrix<const std::int16_t>& values) {
  require(values.shape(1) <= n_trial_classes, "too many components");
  nb::gil_scoped_release unlocked;
  return factor_bits(chosen_search(), values.data(), values.shape(0), values.shape(1));
}

// Rows of floats, each of which is contiguous.
template <class Real>
using RealRows = nb::ndarray<const Real, nb::numpy, nb::ndim<2>, nb::device::cpu>;
using Counts = nb::ndarray<std::int64_t, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Numbers = nb::ndarray<const T, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class Real, class Kernel>
void make_integers(const RealRows<Real>& values, const Numbers<Real>& scales,
                   const Numbers<std::int32_t>& shifts, bool is_by_row,
                   const PlainMatrix<std::int16_t>& out, Kernel kernel) {
  const std::size_t rows = values.shape(0), columns = values.shape(1);
  const std::size_t n = is_by_row ? rows : columns;
  require(out.shape(0) == rows && out.shape(1) == columns && scales.shape(0) == n &&
              shifts.shape(0) == n,
          "shapes differ");
  require(values.stride(1) == 1 || columns <= 1, "rows must be contiguous");
  for (std::size_t k = 0; k < n; ++k)
    require(shifts.data()[k] >= 0 && shifts.data()[k] < 15, "a shift of more than 14");
  nb::gil_scoped_release unlocked;
  std::vector<Real> scale(columns);
  std::vector<std::int32_t> shift(columns);
  for (std::size_t i = 0; i < rows; ++i) {
    if (is_by_row) {
      std::fill(scale.begin(), scale.end(), scales.data()[i]);
      std::fill(shift.begin(), shift.end(), shifts.data()[i]);
    }
    kernel(values.data() + std::ptrdiff_t(i) * values.stride(0),
           is_by_row ? scale.data() : scales.data(), is_by_row ? shift.data() : shifts.data(),
           columns, out.data() + i * columns);
  }
}

void count_exponents(int kind, const Words2& words, const Counts& counts) {
  const Rows rows = rows_of(word_kind(kind), words);
  with_words(WordKind(kind), [&]<class Words>(Words) {
    constexpr std::size_t n_fields = std::size_t(1) << Words::exponent_bits;
    require(counts.shape(0) == n_fields, "a count for each exponent field");
    nb::gil_scoped_release unlocked;
    using Word = typename Words::Word;
    // A count that has just been stored is slow to load: two take turns.
    std::vector<std::int64_t> others(n_fields);
    std::int64_t* const ways[2] = {counts.data(), others.data()};
    for (std::size_t i = 0; i < rows.rows; ++i)
      for (std::size_t j = 0; j < rows.columns; ++j)
        ++ways[j % 2][load<Word>(rows[i] + j * sizeof(Word)) >> Words::mantissa_bits &
                      (n_fields - 1)];
    for (std::size_t field = 0; field < n_fields; ++field) counts.data()[field] += others[field];
  });
}

void whiten(const PlainMatrix<double>& squares, const PlainMatrix<float>& turn) {
  const std::size_t n = squares.shape(0);
  require(squares.shape(1) == n && turn.shape(0) == n && turn.shape(1) == n, "shapes differ");
  nb::gil_scoped_release unlocked;
  chosen_search().whiten(squares.data(), n, turn.data());
}

// (left, right, floor, is_rounded, is_worth_more): rows x rank and rank x columns numbers of 16 bits.
using Found = std::tuple<nb::bytes, nb::bytes, int, bool, bool>;

Found fit_directions(int kind, const Words2& words, const Words2& base) {
  const Rows to = rows_of(word_kind(kind), words), from = rows_of(word_kind(kind), base);
  require(to.rows == from.rows && to.columns == from.columns, "shapes differ");
  require(is_fit_in_directions(kind, to.rows, to.columns), "words of another kind, or too many");
  const std::size_t size = to.rows * to.columns * words.itemsize();
  const auto follow = [&](const Rows& rows) {
    return rows.rows <= 1 || rows.stride * std::ptrdiff_t(rows.rows) == std::ptrdiff_t(size);
  };
  require(follow(to) && follow(from), "rows must follow one another");
  const auto [found, is_worth_more] = [&] {
    nb::gil_scoped_release unlocked;
    return fit_in_directions(*chosen_kernels(), chosen_search(), {to.begin, size},
                             {from.begin, size}, to.rows, to.columns);
  }();
  const auto bytes_of = [](const std::vector<std::int16_t>& numbers) {
    return nb::bytes(numbers.data(), numbers.size() * sizeof(std::int16_t));
  };
  return {bytes_of(found.left), bytes_of(found.right), found.floor, found.is_rounded,
          is_worth_more};
}

}  // namespace

void bind_search(nb::module_& m) {
  m.def("greatest_magnitude", &greatest_magnitude, "kind"_a, "words"_a,
        nb::sig("def greatest_magnitude(kind: int, words: " WORDS ") -> int"),
        "The greatest magnitude of the words that are numbers, as a word without its sign; 0 where\n"
        "there is none. kind: see fm_delta.WORD_KINDS; one of those that are predicted, as in all\n"
        "that follows.");
  m.def(
      "subtract",
      [](int kind, const Words2& words, const Words2& base, const PlainMatrix<float>& out) {
        subtract(kind, words, base, out, chosen_search().subtract);
      },
      "kind"_a, "words"_a, "base"_a, "out"_a.noconvert(),
      nb::sig("def subtract(kind: int, words: " WORDS ", base: " WORDS ", out: " ARRAY("float32")
              ") -> None"),
      "Fills `out` with words less base, rounded to its floats; 0 where either is no number.\n"
      "ValueError unless all have the same shape, rows contiguous.");
  m.def(
      "subtract",
      [](int kind, const Words2& words, const Words2& base, const PlainMatrix<double>& out) {
        subtract(kind, words, base, out, chosen_search().subtract_exactly);
      },
      "kind"_a, "words"_a, "base"_a, "out"_a.noconvert(),
      nb::sig("def subtract(kind: int, words: " WORDS ", base: " WORDS ", out: " ARRAY("float64")
              ") -> None"),
      "The same in float64.");
  m.def("line_energies", &line_energies, "kind"_a, "words"_a, "base"_a, "by_row"_a.noconvert(),
        "by_column"_a.noconvert(),
        nb::sig("def line_energies(kind: int, words: " WORDS ", base: " WORDS ", by_row: "
                ARRAY("float32") ", by_column: " ARRAY("float32") ") -> None"),
        "Fills by_row (rows x 1) and by_column (1 x columns) with the sums of squares of words less\n"
        "base; of a row in which a word is no number, infinity. ValueError unless the shapes fit.");
#define ASK(real)                                                                      \
  nb::sig("def ask(kind: int, words: " WORDS ", base: " WORDS ", products: " ARRAY(real)   \
          ", typical: int, octaves: int, margin: float | None, inertia: float, is_rounded: bool," \
          " weights: " ARRAY("float32") ", pulls: " ARRAY("float32") ") -> None")
  bind_ask<float>(
      m, ASK("float32"),
      "Fills `weights` of words, and `pulls`: how far their products should move, times the weight.\n"
      "products: what was added to the base, so far as it is known. typical: the exponent field of\n"
      "the typical ulp. octaves, margin, inertia: see low_rank_steps.Rule. is_rounded: see\n"
      "low_rank.LowRank. ValueError unless all have the same shape.");
  bind_ask<double>(m, ASK("float64"), "The same of float64 products.");
#define HALF_STEP(real)                                                                        \
  nb::sig("def half_step(kind: int, words: " WORDS ", base: " WORDS ", own: " ARRAY(real)        \
          ", given: " ARRAY(real) ", typical: int, octaves: int, margin: float | None,"          \
          " inertia: float, is_rounded: bool, solutions: " ARRAY("float64") ") -> None")
  bind_half_step<float>(
      m, HALF_STEP("float32"),
      "Fills `solutions` with what `own` (a row for each row of words) should be moved by, so that\n"
      "own @ given (a column for each column of words) is nearer to what the words ask for: see\n"
      "`ask`. Words may have any strides. The squares of words that are no finer than most of\n"
      "their row are taken for those of the mean column, and a little is added to diagonals.\n"
      "ValueError where shapes do not fit each other.");
  bind_half_step<double>(m, HALF_STEP("float64"), "The same of float64 products.");
  m.def("trial_bits", &trial_bits, "kind"_a, "words"_a, "base"_a, "left"_a, "right"_a, "floor"_a,
        "is_rounded"_a,
        nb::sig("def trial_bits(kind: int, words: " WORDS ", base: " WORDS ", left: " ARRAY("int16")
                ", right: " ARRAY("int16") ", floor: int, is_rounded: bool) -> float"),
        "About how many bits words take after a prediction from the base by factors: left is\n"
        "rows x rank, right rank x columns; rank 0 predicts the base. floor, is_rounded: see\n"
        "low_rank.LowRank. ValueError where shapes do not fit each other.");
#define MAKE_INTEGERS(real)                                                                  \
  nb::sig("def make_integers(values: " ARRAY(real) ", scales: " ARRAY(real) ", shifts: "     \
          ARRAY("int32") ", is_by_row: bool, out: " ARRAY("int16") ") -> None")
  m.def(
      "make_integers",
      [](const RealRows<float>& values, const Numbers<float>& scales,
         const Numbers<std::int32_t>& shifts, bool is_by_row, const PlainMatrix<std::int16_t>& out) {
        make_integers(values, scales, shifts, is_by_row, out, chosen_search().integers);
      },
      "values"_a.noconvert(), "scales"_a.noconvert(), "shifts"_a.noconvert(), "is_by_row"_a,
      "out"_a.noconvert(), MAKE_INTEGERS("float32"),
      "Fills `out` with values times scales, to nearest, ties to even, but within 32767 >> shift;\n"
      "then shifted back by as much. scales, shifts (0 to 14): of rows, or else of columns.\n"
      "ValueError where shapes do not fit each other.");
  m.def(
      "make_integers",
      [](const RealRows<double>& values, const Numbers<double>& scales,
         const Numbers<std::int32_t>& shifts, bool is_by_row, const PlainMatrix<std::int16_t>& out) {
        make_integers(values, scales, shifts, is_by_row, out, chosen_search().integers_exactly);
      },
      "values"_a.noconvert(), "scales"_a.noconvert(), "shifts"_a.noconvert(), "is_by_row"_a,
      "out"_a.noconvert(), MAKE_INTEGERS("float64"), "The same of float64.");
  m.def("count_exponents", &count_exponents, "kind"_a, "words"_a, "counts"_a.noconvert(),
        nb::sig("def count_exponents(kind: int, words: " WORDS ", counts: " ARRAY("int64")
                ") -> None"),
        "Adds to the count of each exponent field how many of the words have it.");
  m.def("whiten", &whiten, "squares"_a.noconvert(), "turn"_a.noconvert(),
        nb::sig("def whiten(squares: " ARRAY("float64") ", turn: " ARRAY("float32") ") -> None"),
        "Fills `turn`, so that columns @ turn are about orthonormal whose products are `squares`,\n"
        "of which the upper half is read and changed; they must not all be zero.");
  m.def("fit_directions", &fit_directions, "kind"_a, "words"_a, "base"_a,
        nb::sig("def fit_directions(kind: int, words: " WORDS ", base: " WORDS
                ") -> tuple[bytes, bytes, int, bool, bool]"),
        "A product of low rank that makes words of BF16 smaller, given the base: its left and right\n"
        "factor, rows x rank and rank x columns of int16, empty where none pays; its floor; whether it\n"
        "is rounded before it is added; and whether it is that of a merged adapter and so far from what\n"
        "its factors take that it pays to look closer. The same on every machine. ValueError unless\n"
        "both are C-contiguous, of the same shape, and have at most 65536 rows and columns.");
  m.def("factor_bits", &bits_of_factors, "values"_a,
        "About how many bits factors take, each column one component.");
}

}  // namespace deltahub
