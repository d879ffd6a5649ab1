// Outliers: rows and columns whose differences are much larger than most, such as a row that was
// initialized again or one with a single far-off number. They would take up all components of a
// product. Not part of the format.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/words.hpp"
#include "kernels/low_rank/kernels.hpp"
#include "low_rank/factors.hpp"
#include "low_rank/int16_rows.hpp"

namespace deltahub {
namespace detail {

inline constexpr double outlier = 256;  // in units of the median of sums of squares

// Which sums of squares are those of outliers.
template <class Number>
std::vector<std::uint8_t> outliers_among(const std::vector<Number>& energies) {
  std::vector<Number> changed;
  for (const Number energy : energies)
    if (energy > 0) changed.push_back(energy);
  std::vector<std::uint8_t> found(energies.size());
  if (changed.empty()) return found;
  const auto middle = changed.begin() + std::ptrdiff_t(changed.size() / 2);
  std::ranges::nth_element(changed, middle);
  for (std::size_t i = 0; i < found.size(); ++i)
    found[i] = !(double(energies[i]) <= outlier * double(*middle));
  return found;
}
inline std::size_t count_of(const std::vector<std::uint8_t>& are_set) {
  return std::size_t(std::ranges::count(are_set, 1));
}

}  // namespace detail

// Whether strong components are concentrated in so few rows or columns that these may be outliers.
inline bool may_have_outliers(const Components<float>& found) {
  constexpr std::size_t n_strong = 8;
  // Limit of a component's sum of fourth powers times rows. It is 3 if the component is normal
  // noise in all rows, and 48 if it is in one row of 16.
  constexpr float few = 24;
  const auto has_some = [&](const UninitializedVector<float>& rows, bool is_left) {
    float scales[n_strong], sums[n_strong] = {};
    for (std::size_t k = 0; k < n_strong; ++k)
      scales[k] = is_left ? 1 : 1 / float(found.singular_values[k]);
    const std::size_t n_rows = rows.size() / found.n;
    for (std::size_t i = 0; i < n_rows; ++i)
      for (std::size_t k = 0; k < n_strong; ++k) {
        const float number = rows[i * found.n + k] * scales[k], square = number * number;
        sums[k] += square * square;
      }
    return std::ranges::any_of(sums, [&](float sum) { return !(sum * float(n_rows) <= few); });
  };
  return has_some(found.left, true) || has_some(found.right, false);
}

// The words of `source` with those of `base` in place of outliers, in row order. Empty if there are
// no outliers, or too many.
template <class Words>
std::vector<std::uint8_t> without_outliers(const SearchKernels& search, WordRows source,
                                           WordRows base) {
  using Word = typename Words::Word;
  constexpr std::size_t most = 16;  // outliers are at most one row of 16, and one column of 16
  const std::size_t rows = source.rows, columns = source.columns;
  std::vector<float> by_row(rows), by_column(columns);
  const auto add_energies = search.add_energies[kind_of<Words>];
  for (std::size_t i = 0; i < rows; ++i)
    by_row[i] = add_energies(source[i], base[i], columns, by_column.data());
  const std::vector<std::uint8_t> is_row = detail::outliers_among(by_row);
  const std::size_t n_rows = detail::count_of(is_row);
  if (n_rows > rows / most) return {};
  if (n_rows > 0) {  // without these rows, other columns may be outliers
    std::fill(by_column.begin(), by_column.end(), 0.0f);
    for (std::size_t i = 0; i < rows; ++i)
      if (!is_row[i]) add_energies(source[i], base[i], columns, by_column.data());
  }
  const std::vector<std::uint8_t> is_column = detail::outliers_among(by_column);
  const std::size_t n_columns = detail::count_of(is_column);
  if (n_columns > columns / most || n_rows + n_columns == 0) return {};
  std::vector<std::uint8_t> words(rows * columns * sizeof(Word));
  for (std::size_t i = 0; i < rows; ++i) {
    std::uint8_t* const out = &words[i * columns * sizeof(Word)];
    std::memcpy(out, is_row[i] ? base[i] : source[i], columns * sizeof(Word));
    for (std::size_t j = 0; n_columns > 0 && j < columns; ++j)
      if (is_column[j])
        std::memcpy(out + j * sizeof(Word), base[i] + j * sizeof(Word), sizeof(Word));
  }
  return words;
}

}  // namespace deltahub
