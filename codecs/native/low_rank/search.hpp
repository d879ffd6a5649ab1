// Which frames a product is looked for in natively, and in which of their rows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "fm_delta/plan.hpp"
#include "kernels/codec_interface.hpp"
#include "low_rank/randomized_svd.hpp"
#include "low_rank/size_estimate_rows.hpp"

namespace deltahub {

// Factors have at most so many numbers, for the memory that a search may take.
inline constexpr std::size_t most_factors = std::size_t(1) << 21;
// Of rows and of columns, at least.
inline constexpr std::size_t least_side = 2 * n_directions;
inline constexpr std::size_t words_to_compare = std::size_t(1) << 13;

inline bool is_fit_in_directions(int kind, std::size_t rows, std::size_t columns) {
  return kind == kind_of<Bf16Words> && std::max(rows, columns) <= most_factors / n_directions;
}

struct FittedDirections {
  LowRank low_rank;           // of rank 0 where none pays
  bool is_worth_more = false;  // see FitDirections
};

namespace detail {

// Whether each row's differences are so much larger than most rows' that no product has both: those of
// a row that was made anew, or that holds one number that is far off. They would take all directions.
// Empty where there is no such row, or more than a few. energies: of the rows, if they are known.
inline std::vector<std::uint8_t> wild_rows(const SearchKernels& search, WordRows source,
                                           WordRows base, std::vector<double> energies) {
  using Words = Bf16Words;
  constexpr double wild = 256;  // times the median
  constexpr std::size_t most = 16;  // one in so many rows
  if (energies.size() != source.rows) {
    std::vector<float> by_column(source.columns);
    energies.clear();
    for (std::size_t i = 0; i < source.rows; ++i)
      energies.push_back(search.add_energies[kind_of<Words>](source[i], base[i], source.columns,
                                                             by_column.data()));
  }
  std::vector<double> changed;
  for (const double energy : energies)
    if (energy > 0) changed.push_back(energy);
  if (changed.empty()) return {};
  const auto middle = changed.begin() + std::ptrdiff_t(changed.size() / 2);
  std::ranges::nth_element(changed, middle);
  std::vector<std::uint8_t> is_wild;
  for (const double energy : energies) is_wild.push_back(!(energy <= wild * *middle));
  const auto n_wild = std::size_t(std::ranges::count(is_wild, 1));
  return n_wild > 0 && n_wild <= source.rows / most ? is_wild : std::vector<std::uint8_t>();
}

}  // namespace detail

// A product for the words of a frame whose sides and kind are such. Rows behind the last one of the
// base that is not zero have none: they are new, as of a vocabulary that was extended, and so large
// beside differences that they would take all directions.
inline FittedDirections fit_in_directions(const Kernels& kernels, const SearchKernels& search,
                                          View source, View base, std::size_t rows,
                                          std::size_t columns) {
  using Words = Bf16Words;
  if (std::min(rows, columns) < least_side) return {};
  const std::size_t row_bytes = columns * sizeof(Words::Word);
  std::size_t known = rows;
  const auto is_zero = [&](std::size_t row) {
    const View words = base.subspan(row * row_bytes, row_bytes);
    return words[0] == 0 && std::memcmp(words.data(), words.data() + 1, row_bytes - 1) == 0;
  };
  while (known > 0 && is_zero(known - 1)) --known;
  if (known < least_side) return {};
  const auto rows_of = [&](View words) {
    return WordRows{words.data(), std::ptrdiff_t(row_bytes), known, columns};
  };
  const WordRows words = rows_of(source), near = rows_of(base);
  FitDirections<Words> plain(kernels, search, words, near);
  FittedDirections found{plain.fit(), plain.is_worth_more()};
  if (!plain.is_sure()) {
    const std::vector<std::uint8_t> is_wild = detail::wild_rows(search, words, near, plain.energies());
    if (!is_wild.empty()) {
      WordRows tame = words;
      tame.is_other = is_wild.data(), tame.others = near.begin;
      FitDirections<Words> other(kernels, search, tame, near);
      FittedDirections without{other.fit(), other.is_worth_more()};
      TrialRows<Words> trial(kernels, search, words, near, words_to_compare);
      const auto bits = [&](LowRank& product) {
        return product.rank > 0 ? trial.with(product, false) : trial.without();
      };
      if (bits(without.low_rank) < bits(found.low_rank)) found = std::move(without);
    }
  }
  found.low_rank.left.resize(rows * std::size_t(found.low_rank.rank));
  return found;
}

}  // namespace deltahub
