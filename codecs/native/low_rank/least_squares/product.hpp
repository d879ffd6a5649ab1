// The product that alternating least squares fits: two thin factors, and changes of their basis.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "kernels/low_rank/kernels.hpp"
#include "kernels/low_rank/whitening.hpp"
#include "low_rank/factors.hpp"
#include "low_rank/int16_rows.hpp"

namespace deltahub {

// left right^T. Rows of both factors have n numbers; the first `rank` of them are set, the rest is
// 0.
template <class Real>
struct FittedProduct {
  using Numbers = UninitializedVector<Real>;

  std::size_t n, rank;
  Numbers left, right;

  // The first `rank` components of `found`; columns of `right` have length 1.
  static FittedProduct of(const Components<Real>& found, std::size_t rank) {
    FittedProduct product{(rank + rank_step - 1) / rank_step * rank_step, rank, {}, {}};
    const auto copy = [&](const Numbers& from, Numbers& to, bool is_longer) {
      const std::size_t n_rows = from.size() / found.n;
      to.resize(n_rows * product.n);
      for (std::size_t i = 0; i < n_rows; ++i)
        for (std::size_t k = 0; k < product.n; ++k) {
          const double number = k < rank ? double(from[i * found.n + k]) : 0;
          const double singular_value = k < rank ? found.singular_values[k] : 1;
          to[i * product.n + k] =
              Real(is_longer ? number * singular_value : number / singular_value);
        }
    };
    copy(found.left, product.left, true);
    copy(found.right, product.right, false);
    return product;
  }

  // The components of a product; their n is 0 if the product is 0 or not finite. The product is
  // passed by value, so that its memory is free when the components are known.
  static Components<Real> components_of(const SearchKernels& search, FittedProduct product) {
    const std::size_t n = product.n;
    Components<Real> found;
    if (!orthonormalize(search, product.left, product.right, n)) return found;
    Numbers identity(n * n);
    std::fill(identity.begin(), identity.end(), Real(0));
    for (std::size_t k = 0; k < n; ++k) identity[k * n + k] = 1;
    found.n = n;
    if (!found.decompose(search, product.left, identity, product.right)) found.n = 0;
    return found;
  }

  // Makes the columns of `factor` orthonormal, up to rounding, and changes `other` so that the
  // product stays the same. False if `factor` is 0 or not finite.
  static bool orthonormalize(const SearchKernels& search, Numbers& factor, Numbers& other,
                             std::size_t n) {
    const ThinProducts<Real> thin(search, n);
    std::vector<double> upper = thin.squares(factor);
    const double trace = thin.trace(upper);
    if (!(trace > no_energy) || !std::isfinite(trace)) return false;
    Numbers transform(n * n), back(n * n), out;
    whiten(upper.data(), n, transform.data());  // `upper` becomes the inverse of `transform`
    for (std::size_t k = 0; k < n; ++k)
      for (std::size_t l = 0; l < n; ++l) back[l * n + k] = l >= k ? Real(upper[k * n + l]) : 0;
    thin.multiply(factor, transform, out);
    factor.swap(out);
    thin.multiply(other, back, out);
    other.swap(out);
    return true;
  }

  // Replaces the right factor with that of `other`, and projects the product on it.
  void project_on(const FittedProduct& other) {
    const std::size_t n_rows = left.size() / n, n_columns = right.size() / n;
    std::vector<Real> transform(n * other.n);
    for (std::size_t j = 0; j < n_columns; ++j)
      for (std::size_t k = 0; k < rank; ++k)
        for (std::size_t l = 0; l < other.n; ++l)
          transform[k * other.n + l] += right[j * n + k] * other.right[j * other.n + l];
    Numbers projected(n_rows * other.n);
    for (std::size_t i = 0; i < n_rows; ++i) {
      Real* const row = &projected[i * other.n];
      std::fill_n(row, other.n, Real(0));
      for (std::size_t k = 0; k < rank; ++k)
        for (std::size_t l = 0; l < other.n; ++l)
          row[l] += left[i * n + k] * transform[k * other.n + l];
    }
    *this = {other.n, other.rank, std::move(projected), other.right};
  }

 private:
  // Kernels multiply this many columns at once.
  static constexpr std::size_t rank_step = component_step * sizeof(float) / sizeof(Real);
};

}  // namespace deltahub
