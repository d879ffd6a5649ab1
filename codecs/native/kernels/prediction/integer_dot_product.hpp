// The integer product as dot products of 16-bit vectors, for which compilers use the instructions
// of each processor: pmaddwd of SSE2, smlal of NEON. So the columns of the right factor are
// contiguous.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/isa.hpp"

DELTAHUB_BEGIN
namespace {

constexpr std::size_t rank_step = 8, max_rank = 64;
constexpr bool is_right_by_column = true;

// One row of a product. Compilers vectorize the inner loops of this file only if they are not
// unrolled and have a constant length.
template <std::size_t RANK>
void dots_of_row(const std::int16_t* left, const std::int16_t* right, std::size_t n,
                 std::int32_t* __restrict out) {
  for (std::size_t j = 0; j < n; ++j, right += RANK) {
    std::uint32_t sum = 0;
#pragma GCC unroll 1
    for (std::size_t k = 0; k < RANK; ++k) sum += std::uint32_t(left[k] * right[k]);
    out[j] = std::int32_t(sum);
  }
}

// Four rows at a time, so that each loaded element of the right factor is used four times.
template <std::size_t RANK>
void dots_of_four(const std::int16_t* left, const std::int16_t* right, std::size_t n,
                  std::int32_t* __restrict out) {
  const std::int16_t *const second = left + RANK, *const third = second + RANK,
                     *const fourth = third + RANK;
  for (std::size_t j = 0; j < n; ++j, right += RANK) {
    std::uint32_t sums[4] = {};
#pragma GCC unroll 1
    for (std::size_t k = 0; k < RANK; ++k) {
      sums[0] += std::uint32_t(left[k] * right[k]);
      sums[1] += std::uint32_t(second[k] * right[k]);
      sums[2] += std::uint32_t(third[k] * right[k]);
      sums[3] += std::uint32_t(fourth[k] * right[k]);
    }
    for (std::size_t row = 0; row < 4; ++row) out[row * n + j] = std::int32_t(sums[row]);
  }
}

template <std::size_t RANK>
void dots(const std::int16_t* left, std::size_t n_rows, const std::int16_t* right, std::size_t n,
          std::int32_t* out) {
  if (n_rows == 4) return dots_of_four<RANK>(left, right, n, out);
  for (std::size_t row = 0; row < n_rows; ++row)
    dots_of_row<RANK>(left + row * RANK, right, n, out + row * n);
}

using Dots = void (*)(const std::int16_t*, std::size_t, const std::int16_t*, std::size_t,
                      std::int32_t*);
template <class Steps>
struct DotsOfRanks;
template <std::size_t... I>
struct DotsOfRanks<std::index_sequence<I...>> {
  static constexpr Dots of[] = {dots<rank_step * (I + 1)>...};
};

inline void product(const std::int16_t* left, std::size_t n_rows, int rank,
                    const std::int16_t* right, std::size_t, std::size_t n, std::int32_t* out) {
  using Ranks = DotsOfRanks<std::make_index_sequence<max_rank / rank_step>>;
  if (rank > 0) Ranks::of[std::size_t(rank) / rank_step - 1](left, n_rows, right, n, out);
}

}  // namespace
DELTAHUB_END
