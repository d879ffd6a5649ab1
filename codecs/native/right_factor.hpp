// The right factor of a product as a set of kernels reads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.hpp"

namespace deltahub {

// How many factors a row has: the rank, filled up with zeros.
inline std::size_t filled_rank(const Kernels& kernels, std::size_t rank) {
  return (rank + kernels.rank_step - 1) / kernels.rank_step * kernels.rank_step;
}

class RightFactor {
 public:
  RightFactor() = default;
  // right: rank x columns.
  RightFactor(const Kernels& kernels, const std::int16_t* right, std::size_t rank,
              std::size_t columns)
      : stride_(columns) {
    const std::size_t filled = filled_rank(kernels, rank);
    beside_ = kernels.is_right_by_column ? filled : kernels.rank_step;
    numbers_.resize(filled * columns);
    for (std::size_t k = 0; k < rank; ++k)
      for (std::size_t j = 0; j < columns; ++j)
        numbers_[(k / beside_ * columns + j) * beside_ + k % beside_] = right[k * columns + j];
  }

  const std::int16_t* from(std::size_t column) const { return &numbers_[column * beside_]; }
  std::size_t stride() const { return stride_; }

 private:
  std::vector<std::int16_t> numbers_;
  std::size_t stride_ = 0;
  std::size_t beside_ = 0;  // so many components of a column lie side by side
};

}  // namespace deltahub
