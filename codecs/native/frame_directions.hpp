// Which frames a product is looked for in natively, and in which of their rows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "codec.hpp"
#include "fit_directions.hpp"
#include "plan.hpp"

namespace deltahub {

// Factors have at most so many numbers, for the memory that a search may take.
inline constexpr std::size_t most_factors = std::size_t(1) << 21;
// Of rows and of columns, at least.
inline constexpr std::size_t least_side = 2 * n_directions;

inline bool is_fit_in_directions(int kind, std::size_t rows, std::size_t columns) {
  return kind == kind_of<Bf16Words> && std::max(rows, columns) <= most_factors / n_directions;
}

struct FittedDirections {
  LowRank low_rank;           // of rank 0 where none pays
  bool is_worth_more = false;  // see FitDirections
};

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
  FitDirections<Words> search_of(kernels, search, rows_of(source), rows_of(base));
  LowRank found = search_of.fit();
  found.left.resize(rows * std::size_t(found.rank));
  return {std::move(found), search_of.is_worth_more()};
}

}  // namespace deltahub
