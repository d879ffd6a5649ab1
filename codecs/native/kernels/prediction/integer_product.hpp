// The integer product, two vectors of columns at a time. The struct Columns, from
// contexts_avx2.hpp or contexts_avx512.hpp, must be defined before this header is included.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/words.hpp"

DELTAHUB_BEGIN
namespace {

constexpr std::size_t rank_step = 2;
constexpr bool is_right_by_column = false;

// ROWS rows at a time, so that each loaded vector of the right factor is used ROWS times.
template <std::size_t ROWS>
std::size_t product_of_rows(const std::int16_t* left, int rank, const std::int16_t* pairs,
                            std::size_t stride, std::size_t n, std::int32_t* out) {
  std::size_t j = 0;
  for (; j + 2 * Columns::count <= n; j += 2 * Columns::count) {
    Columns sums[ROWS][2] = {};
    std::size_t at = 2 * j;
    for (int k = 0; k < rank; k += 2, at += 2 * stride) {
      const std::int16_t* const from = pairs + at;
      const Columns right[2] = {Columns::loaded(from), Columns::loaded(from + 2 * Columns::count)};
#pragma GCC unroll 4
      for (std::size_t row = 0; row < ROWS; ++row) {
        const Columns factor = Columns::all(load<std::int32_t>(
            reinterpret_cast<const std::uint8_t*>(left + row * std::size_t(rank) + k)));
        for (std::size_t v = 0; v < 2; ++v) sums[row][v].add_products(factor, right[v]);
      }
    }
    for (std::size_t row = 0; row < ROWS; ++row)
      for (std::size_t v = 0; v < 2; ++v)
        sums[row][v].store(out + row * n + j + v * Columns::count);
  }
  return j;
}

inline std::size_t fast_product(const std::int16_t* left, std::size_t n_rows, int rank,
                                const std::int16_t* pairs, std::size_t stride, std::size_t n,
                                std::int32_t* out) {
  if (n_rows == 4) return product_of_rows<4>(left, rank, pairs, stride, n, out);
  for (std::size_t row = 0; row < n_rows; ++row)
    product_of_rows<1>(left + row * std::size_t(rank), rank, pairs, stride, n, out + row * n);
  return n / (2 * Columns::count) * (2 * Columns::count);
}

inline void product(const std::int16_t* left, std::size_t n_rows, int rank,
                    const std::int16_t* pairs, std::size_t stride, std::size_t n,
                    std::int32_t* out) {
  const std::size_t j = fast_product(left, n_rows, rank, pairs, stride, n, out);
  for (std::size_t row = 0; row < n_rows; ++row, left += rank, out += n) {
    std::fill(out + j, out + n, 0);
    for (int k = 0; k < rank; k += 2) {
      const std::int16_t* const pair = pairs + 2 * std::size_t(k / 2) * stride;
      for (std::size_t i = j; i < n; ++i)
        out[i] = std::int32_t(std::uint32_t(out[i]) + std::uint32_t(left[k] * pair[2 * i]) +
                              std::uint32_t(left[k + 1] * pair[2 * i + 1]));
    }
  }
}

}  // namespace
DELTAHUB_END
