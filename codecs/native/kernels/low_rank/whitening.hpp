// Whitening: the matrix that makes columns orthonormal, from their inner products.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "base/isa.hpp"

DELTAHUB_BEGIN
namespace {

// transform: the inverse of U, the upper Cholesky factor of squares = U^T U. The upper half of
// `squares` is read and becomes U. A small ridge keeps columns below length 1 that are weaker than
// the last digits of the strongest.
template <class Real>
void whiten(double* squares, std::size_t n, Real* transform) {
  const auto row = [&](std::size_t k) { return squares + k * n; };
  double trace = 0;
  for (std::size_t k = 0; k < n; ++k) trace += row(k)[k];
  const double ridge = 1e-13 * trace;
  for (std::size_t k = 0; k < n; ++k) {
    double* const pivots = row(k);
    const double pivot = std::sqrt(std::max(pivots[k], 0.0) + ridge), inverse = 1 / pivot;
    pivots[k] = pivot;
    for (std::size_t j = k + 1; j < n; ++j) pivots[j] *= inverse;
    for (std::size_t i = k + 1; i < n; ++i) {
      double* const own = row(i);
      const double factor = pivots[i];
      for (std::size_t j = i; j < n; ++j) own[j] -= factor * pivots[j];
    }
  }
  std::vector<double> inverses(n * n);
  for (std::size_t i = n; i-- > 0;) {
    double* const own = &inverses[i * n];
    const double* const factors = row(i);
    for (std::size_t k = i + 1; k < n; ++k) {
      const double* const other = &inverses[k * n];
      const double factor = factors[k];
      for (std::size_t j = k; j < n; ++j) own[j] -= factor * other[j];
    }
    const double inverse = 1 / factors[i];
    for (std::size_t j = i + 1; j < n; ++j) own[j] *= inverse;
    own[i] = inverse;
    for (std::size_t j = 0; j < n; ++j) transform[i * n + j] = Real(own[j]);
  }
}

}  // namespace
DELTAHUB_END
