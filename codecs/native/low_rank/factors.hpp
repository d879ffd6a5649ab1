// A product of thin floats, by its components.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "kernels/low_rank/kernels.hpp"
#include "low_rank/int16_rows.hpp"

namespace deltahub {

// Numbers in rows of n_directions.
using Thin = UnsetNumbers<float>;
using ThinSquares = std::array<double, n_directions * n_directions>;

inline ThinSquares squares_of(const SearchKernels& search, const Thin& rows) {
  constexpr std::size_t n = n_directions;
  ThinSquares squares{};
  search.add_squares(rows.data(), rows.size() / n, squares.data());
  for (std::size_t k = 0; k < n; ++k)
    for (std::size_t l = 0; l < k; ++l) squares[k * n + l] = squares[l * n + k];
  return squares;
}
inline double trace_of(const ThinSquares& squares) {
  double trace = 0;
  for (std::size_t k = 0; k < n_directions; ++k) trace += squares[k * n_directions + k];
  return trace;
}
// out = rows turn, of a square `turn`
inline void multiply(const SearchKernels& search, const Thin& rows, const float* turn, Thin& out) {
  constexpr std::size_t n = n_directions;
  out.resize(rows.size());
  search.multiply({rows.data(), std::ptrdiff_t(n), 1}, rows.size() / n, n, turn, out.data());
}

// left right^T, the strongest component first: columns of `left` are orthonormal, and those of `right`
// as long as components are strong.
struct FoundDirections {
  static constexpr std::size_t n = n_directions;
  static constexpr double nothing = 1e-60;  // a sum of squares that has no digits left

  Thin left, right;
  std::array<double, n> strengths{};

  // Becomes looked turn core^T, where the columns of looked turn are orthonormal; false where that is
  // nothing, or no number.
  bool settle(const SearchKernels& search, const Thin& looked, const float* turn,
              const Thin& core) {
    ThinSquares products = squares_of(search, core), exact;
    const double trace = trace_of(products);
    if (!(trace > nothing) || !std::isfinite(trace)) return false;
    std::array<double, n> lengths;
    search.diagonalize(products.data(), exact.data(), lengths.data());
    std::array<std::size_t, n> order;
    for (std::size_t k = 0; k < n; ++k) order[k] = k;
    std::ranges::stable_sort(order, [&](std::size_t one, std::size_t other) {
      return lengths[one] > lengths[other];
    });
    alignas(64) float axes[n * n], both[n * n];
    for (std::size_t k = 0; k < n; ++k) {
      strengths[k] = std::sqrt(std::max(lengths[order[k]], 1e-20 * trace));
      for (std::size_t l = 0; l < n; ++l) axes[l * n + k] = float(exact[order[k] * n + l]);
    }
    search.multiply({turn, std::ptrdiff_t(n), 1}, n, n, axes, both);
    multiply(search, looked, both, left);
    multiply(search, core, axes, right);
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
