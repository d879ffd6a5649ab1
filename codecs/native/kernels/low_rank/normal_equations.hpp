// Several small systems of normal equations at once, one in each lane of the vectors.
#pragma once

#include <cstddef>

#include "base/isa.hpp"

DELTAHUB_BEGIN
namespace {

inline constexpr std::size_t n_systems = 8;
struct Lanes {
  double of[n_systems];
};

// Solves by the decomposition L D L^T. triangle: rows from the diagonal on; it is overwritten.
// targets: the right sides, which become solutions.
inline void solve_lanes(Lanes* triangle, Lanes* targets, std::size_t rank) {
  const auto row = [&](std::size_t k) { return triangle + k * rank - k * (k + 1) / 2; };
  for (std::size_t k = 0; k < rank; ++k) {
    Lanes* const pivots = row(k);
    Lanes inverse;
    for (std::size_t s = 0; s < n_systems; ++s) inverse.of[s] = 1 / pivots[k].of[s];
    for (std::size_t i = k + 1; i < rank; ++i) {
      Lanes factor, *const own = row(i);
      for (std::size_t s = 0; s < n_systems; ++s) factor.of[s] = pivots[i].of[s] * inverse.of[s];
      for (std::size_t j = i; j < rank; ++j)
        for (std::size_t s = 0; s < n_systems; ++s) own[j].of[s] -= factor.of[s] * pivots[j].of[s];
      for (std::size_t s = 0; s < n_systems; ++s)
        targets[i].of[s] -= factor.of[s] * targets[k].of[s];
    }
  }
  for (std::size_t k = rank; k-- > 0;) {
    const Lanes* const pivots = row(k);
    Lanes left = targets[k];
    for (std::size_t j = k + 1; j < rank; ++j)
      for (std::size_t s = 0; s < n_systems; ++s) left.of[s] -= pivots[j].of[s] * targets[j].of[s];
    for (std::size_t s = 0; s < n_systems; ++s) targets[k].of[s] = left.of[s] / pivots[k].of[s];
  }
}

// Adds a ridge to the diagonal, because sums of float32 may make the matrix singular.
inline void add_ridge(Lanes* triangle, std::size_t rank) {
  Lanes trace{};
  for (std::size_t k = 0, at = 0; k < rank; at += rank - k, ++k)
    for (std::size_t s = 0; s < n_systems; ++s) trace.of[s] += triangle[at].of[s];
  for (std::size_t k = 0, at = 0; k < rank; at += rank - k, ++k)
    for (std::size_t s = 0; s < n_systems; ++s)
      triangle[at].of[s] += 1e-7 * trace.of[s] / double(rank) + 1e-300;
}

}  // namespace
DELTAHUB_END
