// The right factor of a product as a set of kernels reads it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/aligned_memory.hpp"
#include "kernels/kernels.hpp"

// Fuzzers have a lower bound, so that inputs of theirs reach what lies beyond it.
#ifndef DELTAHUB_MOST_FILLED
#define DELTAHUB_MOST_FILLED (std::size_t(1) << 24)
#endif

namespace deltahub {

// How many factors a row has: the rank, filled up with zeros.
inline std::size_t filled_rank(const Kernels& kernels, std::size_t rank) {
  return (rank + kernels.rank_step - 1) / kernels.rank_step * kernels.rank_step;
}

class RightFactor {
 public:
  RightFactor() = default;
  // right: rank x columns.
  RightFactor(const Kernels& kernels, std::vector<std::int16_t> right, std::size_t rank,
              std::size_t columns)
      : rank_(rank), filled_(filled_rank(kernels, rank)), columns_(columns) {
    if (filled_ > rank && filled_ * columns > most_filled) {
      unfilled_ = std::move(right);
      return;
    }
    beside_ = kernels.is_right_by_column ? filled_ : kernels.rank_step;
    numbers_.resize(filled_ * columns);
    for (std::size_t k = 0; k < rank; ++k) {
      std::int16_t* const out = &numbers_[k / beside_ * columns * beside_ + k % beside_];
      const std::int16_t* const from = &right[k * columns];
      const std::size_t beside = beside_;
      for (std::size_t j = 0; j < columns; ++j) out[j * beside] = from[j];
    }
  }

  // Of n_rows <= 4 rows, each of filled_rank factors, and n columns from `first` on; out: rows of n.
  void multiply(const Kernels& kernels, const std::int16_t* left, std::size_t n_rows,
                std::size_t first, std::size_t n, std::int32_t* out) const {
    if (beside_ > 0) {
      kernels.product(left, n_rows, int(filled_), &numbers_[first * beside_], columns_, n, out);
      return;
    }
    std::fill_n(out, n_rows * n, 0);
    for (std::size_t row = 0; row < n_rows; ++row)
      for (std::size_t k = 0; k < rank_; ++k) {
        const std::int16_t* const right = &unfilled_[k * columns_ + first];
        const std::int32_t factor = left[row * filled_ + k];
        std::int32_t* const sums = out + row * n;
        for (std::size_t j = 0; j < n; ++j)
          sums[j] = std::int32_t(std::uint32_t(sums[j]) + std::uint32_t(factor * right[j]));
      }
  }

 private:
  // More numbers than this are not filled up: of rows this wide a frame has few, and the zeros would
  // take more memory than its words.
  static constexpr std::size_t most_filled = DELTAHUB_MOST_FILLED;

  std::vector<std::int16_t, LineAllocator<std::int16_t>> numbers_;
  std::vector<std::int16_t> unfilled_;
  std::size_t rank_ = 0, filled_ = 0, columns_ = 0;
  std::size_t beside_ = 0;  // so many components of a column lie side by side; none: not filled up
};

}  // namespace deltahub
