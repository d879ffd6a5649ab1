// Dense products for low_rank/randomized_svd.hpp: of thin matrices, whose number of columns is a
// multiple of component_step, and of small square ones. Every instruction set adds the same terms
// in the same order.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/registers.hpp"
#include "kernels/low_rank/kernels.hpp"

DELTAHUB_BEGIN
namespace {

// Rows of a product whose sums stay in registers, two registers each.
inline constexpr std::size_t n_product_rows = register_bytes == 64 ? 8 : 6;

template <class Real, std::size_t ROWS>
inline void multiply_rows(const Strided<Real>& a, std::size_t row, std::size_t n_inner,
                          const Real* b, std::size_t n_columns, Real* out, bool is_sum) {
  constexpr std::size_t width = register_bytes / sizeof(Real), n_parts = 2;
  static_assert(component_step % (n_parts * width) == 0);
  for (std::size_t first = 0; first < n_columns; first += n_parts * width) {
    Register<Real> sums[ROWS][n_parts] = {};
    if (is_sum)
      for (std::size_t r = 0; r < ROWS; ++r)
        std::memcpy(sums[r], out + r * n_columns + first, sizeof sums[r]);
    const Real *at = a.numbers + std::ptrdiff_t(row) * a.row, *right = b + first;
    for (std::size_t l = 0; l < n_inner; ++l, at += a.column, right += n_columns) {
      Register<Real> parts[n_parts];
#pragma GCC unroll 2
      for (std::size_t part = 0; part < n_parts; ++part) read(parts[part], right + part * width);
#pragma GCC unroll 8
      for (std::size_t r = 0; r < ROWS; ++r) {
        const Real left = at[std::ptrdiff_t(r) * a.row];
#pragma GCC unroll 2
        for (std::size_t part = 0; part < n_parts; ++part) sums[r][part] += left * parts[part];
      }
    }
    for (std::size_t r = 0; r < ROWS; ++r)
      std::memcpy(out + r * n_columns + first, sums[r], sizeof sums[r]);
  }
}

// out = a b, or out += a b if is_sum. a: n_rows x n_inner; b: n_inner x n_columns.
template <class Real>
void multiply(const Strided<Real>& a, std::size_t n_rows, std::size_t n_inner, const Real* b,
              std::size_t n_columns, Real* out, bool is_sum) {
  std::size_t row = 0;
  for (; row + n_product_rows <= n_rows; row += n_product_rows)
    multiply_rows<Real, n_product_rows>(a, row, n_inner, b, n_columns, out + row * n_columns,
                                        is_sum);
  for (; row + 2 <= n_rows; row += 2)
    multiply_rows<Real, 2>(a, row, n_inner, b, n_columns, out + row * n_columns, is_sum);
  if (row < n_rows)
    multiply_rows<Real, 1>(a, row, n_inner, b, n_columns, out + row * n_columns, is_sum);
}

// Adds the upper half of x^T x to `squares`. x: n x n_columns.
template <class Real>
void add_squares(const Real* x, std::size_t n, std::size_t n_columns, double* squares) {
  constexpr std::size_t side = 8, width = register_bytes / 8, n_parts = side / width;
  constexpr std::size_t n_together = 64;  // rows that are converted to double at a time
  double rows[n_together][most_components];
  for (std::size_t first = 0; first < n; first += n_together) {
    const std::size_t n_rows = std::min(n_together, n - first);
    for (std::size_t i = 0; i < n_rows; ++i)
      for (std::size_t k = 0; k < n_columns; ++k)
        rows[i][k] = double(x[(first + i) * n_columns + k]);
    for (std::size_t top = 0; top < n_columns; top += side)
      for (std::size_t left = top; left < n_columns; left += side) {
        DoubleRegister sums[side][n_parts];
        for (std::size_t k = 0; k < side; ++k)
          std::memcpy(sums[k], squares + (top + k) * n_columns + left, sizeof sums[k]);
        for (std::size_t i = 0; i < n_rows; ++i)
#pragma GCC unroll 4
          for (std::size_t part = 0; part < n_parts; ++part) {
            DoubleRegister along;
            read(along, &rows[i][left + part * width]);
#pragma GCC unroll 8
            for (std::size_t k = 0; k < side; ++k) sums[k][part] += rows[i][top + k] * along;
          }
        for (std::size_t k = 0; k < side; ++k)
          std::memcpy(squares + (top + k) * n_columns + left, sums[k], sizeof sums[k]);
      }
  }
}

// The sum of squares of n floats.
inline double energy(const float* numbers, std::size_t n) {
  constexpr std::size_t n_ways = 16;
  float sums[n_ways] = {};
  std::size_t j = 0;
  for (; j + n_ways <= n; j += n_ways)
    for (std::size_t way = 0; way < n_ways; ++way) sums[way] += numbers[j + way] * numbers[j + way];
  double sum = 0;
  for (const float each : sums) sum += double(each);
  for (; j < n; ++j) sum += double(numbers[j]) * double(numbers[j]);
  return sum;
}

inline double dot(const double* one, const double* other, std::size_t n) {
  constexpr std::size_t n_ways = 8;
  double sums[n_ways] = {};
  for (std::size_t j = 0; j < n; j += n_ways)
    for (std::size_t way = 0; way < n_ways; ++way) sums[way] += one[j + way] * other[j + way];
  for (std::size_t half = n_ways / 2; half > 0; half /= 2)
    for (std::size_t way = 0; way < half; ++way) sums[way] += sums[way + half];
  return sums[0];
}

inline void rotate(double* one, double* other, std::size_t n, double cosine, double sine) {
  for (std::size_t j = 0; j < n; ++j) {
    const double x = one[j], y = other[j];
    one[j] = cosine * x - sine * y;
    other[j] = sine * x + cosine * y;
  }
}

// Eigenvalues and eigenvectors of a symmetric matrix by one-sided Jacobi rotations: its rows are
// rotated until the cosine between any two is small enough. The lengths of the rows are then the
// eigenvalues, and the rows of `vectors` the eigenvectors, which are orthonormal with any bound. n:
// a multiple of 8.
//
// N: n if it is a compile-time constant, else 0.
template <std::size_t N>
void diagonalize_as(double* rows, std::size_t some, double cosine_bound, double* vectors,
                    double* values) {
  const std::size_t n = N > 0 ? N : some;
  const int n_sweeps = cosine_bound < 1e-3 ? 12 : 6;
  const auto row = [&](std::size_t k) { return rows + k * n; };
  double squares[most_components];
  std::fill_n(vectors, n * n, 0.0);
  for (std::size_t k = 0; k < n; ++k) vectors[k * n + k] = 1, squares[k] = dot(row(k), row(k), n);
  bool has_rotated = true;
  for (int sweep = 0; sweep < n_sweeps && has_rotated; ++sweep) {
    has_rotated = false;
    for (std::size_t p = 0; p + 1 < n; ++p)
      for (std::size_t q = p + 1; q < n; ++q) {
        const double both = dot(row(p), row(q), n);
        if (both * both <= cosine_bound * cosine_bound * squares[p] * squares[q]) continue;
        has_rotated = true;
        const double ratio = (squares[q] - squares[p]) / (2 * both);
        const double tangent =
            (ratio < 0 ? -1 : 1) / (std::abs(ratio) + std::sqrt(1 + ratio * ratio));
        const double cosine = 1 / std::sqrt(1 + tangent * tangent), sine = cosine * tangent;
        rotate(row(p), row(q), n, cosine, sine);
        rotate(vectors + p * n, vectors + q * n, n, cosine, sine);
        squares[p] -= tangent * both, squares[q] += tangent * both;
      }
    // Recomputed, because updates by rotations lose the last digits of short rows.
    if (cosine_bound < 1e-3)
      for (std::size_t k = 0; k < n; ++k) squares[k] = dot(row(k), row(k), n);
  }
  for (std::size_t k = 0; k < n; ++k) values[k] = std::sqrt(dot(row(k), row(k), n));
}
inline void diagonalize(double* rows, std::size_t n, double cosine_bound, double* vectors,
                        double* values) {
  const auto as = n == component_step ? diagonalize_as<component_step> : diagonalize_as<0>;
  as(rows, n, cosine_bound, vectors, values);
}

}  // namespace
DELTAHUB_END
