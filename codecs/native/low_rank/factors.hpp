// A product of two thin factors, by its components: one for each singular value.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "kernels/low_rank/kernels.hpp"
#include "low_rank/int16_rows.hpp"

namespace deltahub {

// A sum of squares that has no digits left.
inline constexpr double no_energy = 1e-60;

// What the kernels have for one kind of numbers. Rows have n numbers, a multiple of direction_step; of
// float64, of half as many.
template <class Real>
class ThinProducts {
 public:
  ThinProducts(const SearchKernels& search, std::size_t n) : search_(search), n_(n) {}

  // rows^T rows
  std::vector<double> squares(const UnsetNumbers<Real>& rows) const {
    std::vector<double> squares(n_ * n_);
    if constexpr (is_float)
      search_.add_squares(rows.data(), rows.size() / n_, n_, squares.data());
    else
      search_.add_squares_exactly(rows.data(), rows.size() / n_, n_, squares.data());
    for (std::size_t k = 0; k < n_; ++k)
      for (std::size_t l = 0; l < k; ++l) squares[k * n_ + l] = squares[l * n_ + k];
    return squares;
  }
  double trace(const std::vector<double>& squares) const {
    double trace = 0;
    for (std::size_t k = 0; k < n_; ++k) trace += squares[k * n_ + k];
    return trace;
  }
  // out = rows turn, of a square `turn`
  void multiply(const UnsetNumbers<Real>& rows, const UnsetNumbers<Real>& turn,
                UnsetNumbers<Real>& out) const {
    out.resize(rows.size());
    const Strided<Real> from{rows.data(), std::ptrdiff_t(n_), 1};
    if constexpr (is_float)
      search_.multiply(from, rows.size() / n_, n_, turn.data(), n_, out.data(), false);
    else
      search_.multiply_exactly(from, rows.size() / n_, n_, turn.data(), n_, out.data(), false);
  }

 private:
  static constexpr bool is_float = std::is_same_v<Real, float>;

  const SearchKernels& search_;
  std::size_t n_;
};

// Eigenvalues and, in rows, eigenvectors of a matrix of squares; the greatest first.
struct Eigenvectors {
  std::vector<double> values, rows;

  // squares: n x n, and changed. is_exact: else the vectors are orthonormal, and near.
  Eigenvectors(const SearchKernels& search, std::vector<double>& squares, std::size_t n, bool is_exact)
      : values(n), rows(n * n) {
    std::vector<double> turn(n * n), along(n);
    search.diagonalize(squares.data(), n, is_exact ? 1e-9 : 0.01, turn.data(), along.data());
    std::vector<std::size_t> order(n);
    for (std::size_t k = 0; k < n; ++k) order[k] = k;
    std::ranges::stable_sort(order, [&](std::size_t one, std::size_t other) {
      return along[one] > along[other];
    });
    for (std::size_t k = 0; k < n; ++k) {
      values[k] = along[order[k]];
      std::copy_n(&turn[order[k] * n], n, &rows[k * n]);
    }
  }
};

// left right^T, the strongest component first: columns of `left` are orthonormal, and those of `right`
// as long as components are strong. Both have rows of n numbers.
template <class Real>
struct Components {
  std::size_t n = 0;
  UnsetNumbers<Real> left, right;
  std::vector<double> strengths;

  // Becomes looked turn core^T, where the columns of looked turn are orthonormal; false where that is
  // nothing, or no number.
  bool settle(const SearchKernels& search, const UnsetNumbers<Real>& looked,
              const UnsetNumbers<Real>& turn, const UnsetNumbers<Real>& core) {
    const ThinProducts<Real> products(search, n);
    std::vector<double> squares = products.squares(core);
    const double trace = products.trace(squares);
    if (!(trace > no_energy) || !std::isfinite(trace)) return false;
    const Eigenvectors axes(search, squares, n, sizeof(Real) > 4);
    UnsetNumbers<Real> columns(n * n), both;
    strengths.resize(n);
    for (std::size_t k = 0; k < n; ++k) {
      strengths[k] = std::sqrt(std::max(axes.values[k], 1e-20 * trace));
      for (std::size_t l = 0; l < n; ++l) columns[l * n + k] = Real(axes.rows[k * n + l]);
    }
    products.multiply(turn, columns, both);
    products.multiply(looked, both, left);
    products.multiply(core, columns, right);
    return true;
  }

  // The sum of squares of the first components.
  double energy(std::size_t rank) const {
    double sum = 0;
    for (std::size_t k = 0; k < rank; ++k) sum += strengths[k] * strengths[k];
    return sum;
  }
};

}  // namespace deltahub
