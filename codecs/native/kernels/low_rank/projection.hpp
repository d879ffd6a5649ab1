// Dense products of the sketch in low_rank/randomized_svd.hpp: matrices with n_directions columns. What a sum
// adds up, and in which order, is the same in every instruction set.
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

// Rows of a product whose sums stay in registers, each in two of these.
inline constexpr std::size_t n_product_rows = register_bytes == 64 ? 8 : 6;

template <std::size_t ROWS>
inline void multiply_rows(const Strided& a, std::size_t row, std::size_t n_inner, const float* b,
                          float* out) {
  constexpr std::size_t width = register_bytes / 4, n_parts = 2;
  static_assert(n_directions % (n_parts * width) == 0);
  for (std::size_t first = 0; first < n_directions; first += n_parts * width) {
    FloatRegister sums[ROWS][n_parts] = {};
    const float *at = a.numbers + std::ptrdiff_t(row) * a.row, *right = b + first;
    for (std::size_t l = 0; l < n_inner; ++l, at += a.column, right += n_directions) {
      FloatRegister parts[n_parts];
#pragma GCC unroll 2
      for (std::size_t part = 0; part < n_parts; ++part) read(parts[part], right + part * width);
#pragma GCC unroll 8
      for (std::size_t r = 0; r < ROWS; ++r) {
        const float left = at[std::ptrdiff_t(r) * a.row];
#pragma GCC unroll 2
        for (std::size_t part = 0; part < n_parts; ++part) sums[r][part] += left * parts[part];
      }
    }
    for (std::size_t r = 0; r < ROWS; ++r)
      std::memcpy(out + r * n_directions + first, sums[r], sizeof sums[r]);
  }
}

// out = a b, of so many rows; b has n_inner of them.
inline void multiply(const Strided& a, std::size_t n_rows, std::size_t n_inner, const float* b,
                     float* out) {
  std::size_t row = 0;
  for (; row + n_product_rows <= n_rows; row += n_product_rows)
    multiply_rows<n_product_rows>(a, row, n_inner, b, out + row * n_directions);
  for (; row + 2 <= n_rows; row += 2)
    multiply_rows<2>(a, row, n_inner, b, out + row * n_directions);
  if (row < n_rows) multiply_rows<1>(a, row, n_inner, b, out + row * n_directions);
}

// The upper half of x^T x, of n rows, added to `squares`.
inline void add_squares(const float* x, std::size_t n, double* squares) {
  constexpr std::size_t side = 8, width = register_bytes / 8, n_parts = side / width;
  constexpr std::size_t n_together = 64;  // rows that are doubles at a time
  double rows[n_together][n_directions];
  for (std::size_t first = 0; first < n; first += n_together) {
    const std::size_t n_rows = std::min(n_together, n - first);
    for (std::size_t i = 0; i < n_rows; ++i)
      for (std::size_t k = 0; k < n_directions; ++k)
        rows[i][k] = double(x[(first + i) * n_directions + k]);
    for (std::size_t top = 0; top < n_directions; top += side)
      for (std::size_t left = top; left < n_directions; left += side) {
        DoubleRegister sums[side][n_parts];
        for (std::size_t k = 0; k < side; ++k)
          std::memcpy(sums[k], squares + (top + k) * n_directions + left, sizeof sums[k]);
        for (std::size_t i = 0; i < n_rows; ++i)
#pragma GCC unroll 4
          for (std::size_t part = 0; part < n_parts; ++part) {
            DoubleRegister along;
            read(along, &rows[i][left + part * width]);
#pragma GCC unroll 8
            for (std::size_t k = 0; k < side; ++k) sums[k][part] += rows[i][top + k] * along;
          }
        for (std::size_t k = 0; k < side; ++k)
          std::memcpy(squares + (top + k) * n_directions + left, sums[k], sizeof sums[k]);
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

inline double dot(const double* one, const double* other) {
  constexpr std::size_t n_ways = 8;
  double sums[n_ways] = {};
  for (std::size_t j = 0; j < n_directions; j += n_ways)
    for (std::size_t way = 0; way < n_ways; ++way) sums[way] += one[j + way] * other[j + way];
  for (std::size_t half = n_ways / 2; half > 0; half /= 2)
    for (std::size_t way = 0; way < half; ++way) sums[way] += sums[way + half];
  return sums[0];
}

inline void rotate(double* one, double* other, double cosine, double sine) {
  for (std::size_t j = 0; j < n_directions; ++j) {
    const double x = one[j], y = other[j];
    one[j] = cosine * x - sine * y;
    other[j] = sine * x + cosine * y;
  }
}

// Turns the rows of a symmetric matrix until they are orthogonal, nearly (Jacobi's rotations from one
// side): they are as long as its eigenvalues then, and the rows of `turn` its eigenvectors, which are
// orthonormal however near it is.
inline void diagonalize(double* rows, double* turn, double* lengths) {
  constexpr int n_sweeps = 6;
  constexpr double little = 0.01;  // the cosine between two rows
  const auto row = [&](std::size_t k) { return rows + k * n_directions; };
  double squares[n_directions];
  std::fill_n(turn, n_directions * n_directions, 0.0);
  for (std::size_t k = 0; k < n_directions; ++k)
    turn[k * n_directions + k] = 1, squares[k] = dot(row(k), row(k));
  bool is_turned = true;
  for (int sweep = 0; sweep < n_sweeps && is_turned; ++sweep) {
    is_turned = false;
    for (std::size_t p = 0; p + 1 < n_directions; ++p)
      for (std::size_t q = p + 1; q < n_directions; ++q) {
        const double both = dot(row(p), row(q));
        if (both * both <= little * little * squares[p] * squares[q]) continue;
        is_turned = true;
        const double ratio = (squares[q] - squares[p]) / (2 * both);
        const double tangent =
            (ratio < 0 ? -1 : 1) / (std::abs(ratio) + std::sqrt(1 + ratio * ratio));
        const double cosine = 1 / std::sqrt(1 + tangent * tangent), sine = cosine * tangent;
        rotate(row(p), row(q), cosine, sine);
        rotate(turn + p * n_directions, turn + q * n_directions, cosine, sine);
        squares[p] -= tangent * both, squares[q] += tangent * both;
      }
  }
  for (std::size_t k = 0; k < n_directions; ++k) lengths[k] = std::sqrt(dot(row(k), row(k)));
}

}  // namespace
DELTAHUB_END
