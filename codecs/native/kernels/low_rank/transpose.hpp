// Transposition of small squares of words in registers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/registers.hpp"
#include "base/vectors.hpp"

DELTAHUB_BEGIN
namespace {

// Words in a register of 16 bytes, and the rows and columns that are transposed at once.
template <class Word>
inline constexpr std::size_t n_square = 16 / sizeof(Word);

// to[i * step + j] = the word i at from + j * stride.
template <class Word>
inline void transpose_square(const std::uint8_t* from, std::ptrdiff_t stride, Word* to,
                             std::size_t step) {
  constexpr std::size_t n = n_square<Word>;
  using Row = std::conditional_t<sizeof(Word) == 2, Uint16x8, Uint32x4>;
  Row rows[n];
  for (std::size_t j = 0; j < n; ++j) read(rows[j], from + std::ptrdiff_t(j) * stride);
  // Each round interleaves row j with row j + n / 2, word by word; log2 n rounds transpose.
  for (std::size_t half = n; half > 1; half /= 2) {
    Row mixed[n];
    for (std::size_t j = 0; j < n / 2; ++j) {
      if constexpr (n == 8) {
        mixed[2 * j] = __builtin_shufflevector(rows[j], rows[j + 4], 0, 8, 1, 9, 2, 10, 3, 11);
        mixed[2 * j + 1] =
            __builtin_shufflevector(rows[j], rows[j + 4], 4, 12, 5, 13, 6, 14, 7, 15);
      } else {
        mixed[2 * j] = __builtin_shufflevector(rows[j], rows[j + 2], 0, 4, 1, 5);
        mixed[2 * j + 1] = __builtin_shufflevector(rows[j], rows[j + 2], 2, 6, 3, 7);
      }
    }
    for (std::size_t j = 0; j < n; ++j) rows[j] = mixed[j];
  }
  for (std::size_t i = 0; i < n; ++i) std::memcpy(to + i * step, &rows[i], sizeof rows[i]);
}

}  // namespace
DELTAHUB_END
