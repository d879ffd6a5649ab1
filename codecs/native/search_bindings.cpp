#include "search_bindings.hpp"

#include <nanobind/ndarray.h>

#include <cstring>

#include "codec.hpp"
#include "dispatch.hpp"
#include "prediction.hpp"
#include "trial.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace deltahub {
namespace {

template <class T>
using Matrix = nb::ndarray<T, nb::numpy, nb::ndim<2>, nb::device::cpu>;
template <class T>
using PlainMatrix = nb::ndarray<T, nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
// Of whichever word the kind has.
using Words2 = nb::ndarray<nb::ro, nb::numpy, nb::ndim<2>, nb::device::cpu>;

const SearchKernels& search_kernels() {
#ifdef __x86_64__
  if (chosen_kernels() == &avx2_kernels) return avx2_search;
#endif
  return portable_search;
}

// Rows of words, each of which is contiguous.
struct Rows {
  const std::uint8_t* begin;
  std::ptrdiff_t stride;
  std::size_t rows, columns;

  const std::uint8_t* operator[](std::size_t row) const {
    return begin + std::ptrdiff_t(row) * stride;
  }
};

Rows rows_of(WordKind kind, const Words2& words) {
  require(kind == WordKind::f32 || kind == WordKind::f16 || kind == WordKind::bf16,
          "words that cannot be predicted");
  require(words.itemsize() == (kind == WordKind::f32 ? 4 : 2), "words of another size");
  require(words.stride(1) == 1 || words.shape(1) <= 1, "rows must be contiguous");
  return {static_cast<const std::uint8_t*>(words.data()),
          std::ptrdiff_t(words.stride(0)) * std::ptrdiff_t(words.itemsize()), words.shape(0),
          words.shape(1)};
}

std::uint32_t greatest_magnitude(int kind, const Words2& words) {
  const Rows rows = rows_of(word_kind(kind), words);
  const auto greatest = search_kernels().greatest[kind];
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
      Trial<Words> trial(*chosen_kernels(), search_kernels(), to.columns);
      return trial.bits(to, from, to.rows, factors);
    }
    return 0;
  });
}

double bits_of_factors(const PlainMatrix<const std::int16_t>& values) {
  require(values.shape(1) <= n_trial_classes, "too many components");
  nb::gil_scoped_release unlocked;
  return factor_bits(values.data(), values.shape(0), values.shape(1));
}

}  // namespace

void bind_search(nb::module_& m) {
  m.def("greatest_magnitude", &greatest_magnitude, "kind"_a, "words"_a,
        "The greatest magnitude of the words that are numbers, as a word without its sign; 0 where\n"
        "there is none. kind: see fm_delta.WORD_KINDS; one of those that are predicted, as in all\n"
        "that follows.");
  m.def(
      "subtract",
      [](int kind, const Words2& words, const Words2& base, const PlainMatrix<float>& out) {
        subtract(kind, words, base, out, search_kernels().subtract);
      },
      "kind"_a, "words"_a, "base"_a, "out"_a.noconvert(),
      "Fills `out` with words less base, rounded to its floats; 0 where either is no number.\n"
      "ValueError unless all have the same shape, rows contiguous.");
  m.def(
      "subtract",
      [](int kind, const Words2& words, const Words2& base, const PlainMatrix<double>& out) {
        subtract(kind, words, base, out, search_kernels().subtract_exactly);
      },
      "kind"_a, "words"_a, "base"_a, "out"_a.noconvert());
  m.def("trial_bits", &trial_bits, "kind"_a, "words"_a, "base"_a, "left"_a, "right"_a, "floor"_a,
        "is_rounded"_a,
        "About how many bits words take after a prediction from the base by factors: left is\n"
        "rows x rank, right rank x columns; rank 0 predicts the base. floor, is_rounded: see\n"
        "low_rank.LowRank. ValueError where shapes do not fit each other.");
  m.def("factor_bits", &bits_of_factors, "values"_a,
        "About how many bits factors take, each column one component.");
}

}  // namespace deltahub
