// A product of two thin factors by its components, one for each singular value.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "kernels/low_rank/kernels.hpp"
#include "low_rank/int16_rows.hpp"

namespace deltahub {

// Sums of squares up to this count as 0.
inline constexpr double no_energy = 1e-60;

// The kernels' products of thin matrices, for float or double. Rows have n numbers: a multiple of
// component_step for float, of half of it for double.
template <class Real>
class ThinProducts {
 public:
  ThinProducts(const SearchKernels& search, std::size_t n) : search_(search), n_(n) {}

  // rows^T rows
  std::vector<double> squares(const UninitializedVector<Real>& rows) const {
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
  // out = rows transform; transform is square
  void multiply(const UninitializedVector<Real>& rows, const UninitializedVector<Real>& transform,
                UninitializedVector<Real>& out) const {
    out.resize(rows.size());
    const Strided<Real> from{rows.data(), std::ptrdiff_t(n_), 1};
    if constexpr (is_float)
      search_.multiply(from, rows.size() / n_, n_, transform.data(), n_, out.data(), false);
    else
      search_.multiply_exactly(from, rows.size() / n_, n_, transform.data(), n_, out.data(), false);
  }

 private:
  static constexpr bool is_float = std::is_same_v<Real, float>;

  const SearchKernels& search_;
  std::size_t n_;
};

// Eigenvalues, largest first, and eigenvectors, in rows, of a symmetric matrix X^T X.
struct Eigenvectors {
  std::vector<double> values, rows;

  // squares: n x n; is overwritten. Unless is_exact, the vectors are orthonormal but only
  // approximate.
  Eigenvectors(const SearchKernels& search, std::vector<double>& squares, std::size_t n,
               bool is_exact)
      : values(n), rows(n * n) {
    std::vector<double> vectors(n * n), unordered(n);
    search.diagonalize(squares.data(), n, is_exact ? 1e-9 : 0.01, vectors.data(), unordered.data());
    std::vector<std::size_t> order(n);
    for (std::size_t k = 0; k < n; ++k) order[k] = k;
    std::ranges::stable_sort(order, [&](std::size_t one, std::size_t other) {
      return unordered[one] > unordered[other];
    });
    for (std::size_t k = 0; k < n; ++k) {
      values[k] = unordered[order[k]];
      std::copy_n(&vectors[order[k] * n], n, &rows[k * n]);
    }
  }
};

// The singular value decomposition left right^T, largest component first. Columns of `left` are
// orthonormal; the length of a column of `right` is the singular value. Both have rows of n
// numbers.
template <class Real>
struct Components {
  std::size_t n = 0;
  UninitializedVector<Real> left, right;
  std::vector<double> singular_values;

  // Decomposes projected transform core^T, where the columns of (projected transform) are
  // orthonormal. False if the product is 0 or not finite.
  bool decompose(const SearchKernels& search, const UninitializedVector<Real>& projected,
                 const UninitializedVector<Real>& transform,
                 const UninitializedVector<Real>& core) {
    const ThinProducts<Real> products(search, n);
    std::vector<double> squares = products.squares(core);
    const double trace = products.trace(squares);
    if (!(trace > no_energy) || !std::isfinite(trace)) return false;
    const Eigenvectors axes(search, squares, n, sizeof(Real) > 4);
    UninitializedVector<Real> vectors(n * n), combined;
    singular_values.resize(n);
    for (std::size_t k = 0; k < n; ++k) {
      singular_values[k] = std::sqrt(std::max(axes.values[k], 1e-20 * trace));
      for (std::size_t l = 0; l < n; ++l) vectors[l * n + k] = Real(axes.rows[k * n + l]);
    }
    products.multiply(transform, vectors, combined);
    products.multiply(projected, combined, left);
    products.multiply(core, vectors, right);
    return true;
  }

  // The sum of squares of the first `rank` components' product.
  double energy(std::size_t rank) const {
    double sum = 0;
    for (std::size_t k = 0; k < rank; ++k) sum += singular_values[k] * singular_values[k];
    return sum;
  }
};

}  // namespace deltahub
