// Components that are only the rounding of words: how strong they would be, and their removal.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/words.hpp"
#include "kernels/low_rank/kernels.hpp"
#include "low_rank/factors.hpp"
#include "low_rank/int16_rows.hpp"
#include "low_rank/least_squares/product.hpp"

namespace deltahub {

// The mean squares of the rounding errors of words, by row and by column.
template <class Words>
class RoundingNoise {
 public:
  explicit RoundingNoise(WordRows words) : rows(words.rows), columns(words.columns) {
    std::vector<double> squares(std::size_t(1) << Words::exponent_bits);  // by exponent field
    for (std::size_t field = 0; field + 1 < squares.size(); ++field)  // not of infinities and NaNs
      squares[field] =
          std::exp2(2 * (std::max(int(field), 1) - middle_exponent<Words> - Words::mantissa_bits)) /
          12;
    for (std::size_t i = 0; i < rows.size(); ++i)
      for (std::size_t j = 0; j < columns.size(); ++j) {
        const auto word = load<typename Words::Word>(words[i] + j * sizeof(typename Words::Word));
        const double square = squares[Words::exponent(word)];
        rows[i] += square, columns[j] += square;
      }
    for (double& each : rows) each /= double(columns.size());
    for (double& each : columns) each /= double(rows.size());
  }

  // The mean square where component k of `found` lies, if it lies in only a few rows or columns;
  // else 0.
  template <class Real>
  double where_concentrated(const Components<Real>& found, std::size_t k) const {
    return std::max(in_few(rows, found.left, found.n, k, 1),
                    in_few(columns, found.right, found.n, k, 1 / found.singular_values[k]));
  }

 private:
  // noise: of each row of a factor. scale: gives column k of the factor length 1.
  template <class Numbers>
  static double in_few(const std::vector<double>& noise, const Numbers& factor, std::size_t n,
                       std::size_t k, double scale) {
    constexpr double few = 5;
    double squares = 0, fourths = 0;
    for (std::size_t i = 0; i < noise.size(); ++i) {
      const double number = double(factor[i * n + k]) * scale, square = number * number;
      squares += square * noise[i], fourths += square * square;
    }
    return fourths > 1 / few ? squares : 0;
  }

  std::vector<double> rows, columns;
};

// Removes components that are no stronger than noise; one stays in any case. False if the product
// is 0 or not finite. rounding: the mean square of the noise of all words, as UlpShares::weighed
// gives it. A few rows or columns of large words have much more noise, so components that lie in
// only these are compared with the noise there.
template <class Words, class Real>
bool drop_noise(const SearchKernels& search, WordRows words, double rounding,
                FittedProduct<Real>& product) {
  const auto n_rows = double(product.left.size() / product.n);
  const auto n_columns = double(product.right.size() / product.n);
  const double edge = 1.2 * (std::sqrt(n_rows) + std::sqrt(n_columns));
  const Components<Real> found = FittedProduct<Real>::components_of(search, std::move(product));
  if (found.n == 0) return false;
  const RoundingNoise<Words> noise(words);
  Components<Real> kept{found.n, found.left, found.right, {}};
  std::size_t rank = 0;
  for (std::size_t k = 0; k < found.n; ++k) {
    const double singular_value = found.singular_values[k];
    if (!(singular_value > edge * std::sqrt(rounding))) break;
    if (!(singular_value > edge * std::sqrt(noise.where_concentrated(found, k)))) continue;
    for (std::size_t i = 0; i < found.left.size(); i += found.n)
      kept.left[i + rank] = found.left[i + k];
    for (std::size_t j = 0; j < found.right.size(); j += found.n)
      kept.right[j + rank] = found.right[j + k];
    kept.singular_values.push_back(singular_value), ++rank;
  }
  if (rank == 0) kept.singular_values = {found.singular_values[0]}, rank = 1;
  product = FittedProduct<Real>::of(kept, rank);
  return true;
}

}  // namespace deltahub
