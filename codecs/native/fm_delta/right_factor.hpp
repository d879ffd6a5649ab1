// The right factor of a low-rank product, in the memory layout that a set of kernels reads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/aligned_memory.hpp"
#include "kernels/kernels.hpp"

// Fuzzers lower this limit, so that small inputs exceed it.
#ifndef DELTAHUB_MAX_PADDED
#define DELTAHUB_MAX_PADDED (std::size_t(1) << 24)
#endif

namespace deltahub {

// The rank rounded up to what the kernels need; rows of factors are padded with zeros to it.
inline std::size_t padded_rank(const Kernels& kernels, std::size_t rank) {
  return (rank + kernels.rank_step - 1) / kernels.rank_step * kernels.rank_step;
}

class RightFactor {
 public:
  RightFactor() = default;
  // right: rank x columns.
  RightFactor(const Kernels& kernels, std::vector<std::int16_t> right, std::size_t rank,
              std::size_t columns)
      : rank_(rank), padded_rank_(padded_rank(kernels, rank)), columns_(columns) {
    if (padded_rank_ > rank && padded_rank_ * columns > max_padded) {
      unpadded_ = std::move(right);
      return;
    }
    n_adjacent_ = kernels.is_right_by_column ? padded_rank_ : kernels.rank_step;
    values_.resize(padded_rank_ * columns);
    for (std::size_t k = 0; k < rank; ++k) {
      std::int16_t* const out = &values_[k / n_adjacent_ * columns * n_adjacent_ + k % n_adjacent_];
      const std::int16_t* const from = &right[k * columns];
      const std::size_t n_adjacent = n_adjacent_;
      for (std::size_t j = 0; j < columns; ++j) out[j * n_adjacent] = from[j];
    }
  }

  // The number of component k in column j.
  std::int16_t number(std::size_t k, std::size_t j) const {
    if (n_adjacent_ == 0) return unpadded_[k * columns_ + j];
    return values_[k / n_adjacent_ * columns_ * n_adjacent_ + j * n_adjacent_ + k % n_adjacent_];
  }

  // Fills out (n_rows x n) with the products of n_rows <= 4 rows of `left`, each of padded_rank
  // numbers, and columns [first, first + n).
  void multiply(const Kernels& kernels, const std::int16_t* left, std::size_t n_rows,
                std::size_t first, std::size_t n, std::int32_t* out) const {
    if (n_adjacent_ > 0) {
      kernels.product(left, n_rows, int(padded_rank_), &values_[first * n_adjacent_], columns_, n,
                      out);
      return;
    }
    std::fill_n(out, n_rows * n, 0);
    for (std::size_t row = 0; row < n_rows; ++row)
      for (std::size_t k = 0; k < rank_; ++k) {
        const std::int16_t* const right = &unpadded_[k * columns_ + first];
        const std::int32_t factor = left[row * padded_rank_ + k];
        std::int32_t* const sums = out + row * n;
        for (std::size_t j = 0; j < n; ++j)
          sums[j] = std::int32_t(std::uint32_t(sums[j]) + std::uint32_t(factor * right[j]));
      }
  }

 private:
  // Above this many numbers the factor is not padded: a frame has few rows this wide, and the zeros
  // would take more memory than its words.
  static constexpr std::size_t max_padded = DELTAHUB_MAX_PADDED;

  std::vector<std::int16_t, LineAllocator<std::int16_t>> values_;
  std::vector<std::int16_t> unpadded_;
  std::size_t rank_ = 0, padded_rank_ = 0, columns_ = 0;
  std::size_t n_adjacent_ = 0;  // components of a column that are adjacent; 0: not padded
};

}  // namespace deltahub
