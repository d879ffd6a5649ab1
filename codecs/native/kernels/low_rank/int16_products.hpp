// Products of matrices of 16-bit integers, the same in every instruction set, and quantization of
// floats.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/isa.hpp"
#include "base/words.hpp"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

DELTAHUB_BEGIN
namespace {

// 32-bit sums, one for each column; they wrap.
#if defined(__AVX512F__)
struct PairSums {
  static constexpr std::size_t count = 16;
  void add(std::int32_t left, const std::int16_t* right) {
    sums = _mm512_dpwssd_epi32(sums, _mm512_set1_epi32(left), _mm512_loadu_si512(right));
  }
  __m512i sums;
};
inline constexpr std::size_t n_integer_rows = 8;
#elif defined(__AVX2__)
struct PairSums {
  static constexpr std::size_t count = 8;
  void add(std::int32_t left, const std::int16_t* right) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(right));
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_set1_epi32(left), pairs));
  }
  __m256i sums;
};
inline constexpr std::size_t n_integer_rows = 6;
#elif defined(__SSE2__)
struct PairSums {
  static constexpr std::size_t count = 4;
  void add(std::int32_t left, const std::int16_t* right) {
    const __m128i pairs = _mm_loadu_si128(reinterpret_cast<const __m128i*>(right));
    sums = _mm_add_epi32(sums, _mm_madd_epi16(_mm_set1_epi32(left), pairs));
  }
  __m128i sums;
};
inline constexpr std::size_t n_integer_rows = 6;
#else
struct PairSums {
  static constexpr std::size_t count = 4;
  void add(std::int32_t left, const std::int16_t* right) {
    const std::int32_t low = std::int16_t(left), high = left >> 16;
    for (std::size_t j = 0; j < count; ++j)
      sums[j] += std::uint32_t(low * right[2 * j]) + std::uint32_t(high * right[2 * j + 1]);
  }
  std::uint32_t sums[count];
};
inline constexpr std::size_t n_integer_rows = 4;
#endif

template <std::size_t ROWS>
inline void multiply_integer_rows(const std::int16_t* left, std::size_t n_pairs,
                                  const std::int16_t* pairs, std::size_t n_columns,
                                  std::int32_t* out) {
  constexpr std::size_t n_parts = 2;
  PairSums sums[ROWS][n_parts] = {};
  for (std::size_t l = 0; l < n_pairs; ++l, pairs += 2 * n_columns)
#pragma GCC unroll 8
    for (std::size_t row = 0; row < ROWS; ++row) {
      const auto pair =
          load<std::int32_t>(reinterpret_cast<const std::uint8_t*>(left + 2 * (row * n_pairs + l)));
#pragma GCC unroll 2
      for (std::size_t part = 0; part < n_parts; ++part)
        sums[row][part].add(pair, pairs + 2 * part * PairSums::count);
    }
  for (std::size_t row = 0; row < ROWS; ++row)
    std::memcpy(out + row * n_columns, sums[row], sizeof sums[row]);
}

// out = left right. left: n_rows x 2 n_pairs. pairs: the right matrix, whose rows are interleaved
// in pairs: n_pairs rows of n_columns pairs. n_columns: a multiple of 32.
inline void multiply_integers(const std::int16_t* left, std::size_t n_rows, std::size_t n_pairs,
                              const std::int16_t* pairs, std::size_t n_columns, std::int32_t* out) {
  constexpr std::size_t n_together = 2 * PairSums::count;
  for (std::size_t j = 0; j < n_columns; j += n_together) {
    std::size_t row = 0;
    for (; row + n_integer_rows <= n_rows; row += n_integer_rows)
      multiply_integer_rows<n_integer_rows>(left + 2 * row * n_pairs, n_pairs, pairs + 2 * j,
                                            n_columns, out + row * n_columns + j);
    for (; row < n_rows; ++row)
      multiply_integer_rows<1>(left + 2 * row * n_pairs, n_pairs, pairs + 2 * j, n_columns,
                               out + row * n_columns + j);
  }
}

// value * scale, rounded to the nearest 16-bit integer, ties to even; unspecified for NaN.
inline std::int32_t quantized(float value, float scale) {
  constexpr float whole = 3 << 22;  // a sum with it is rounded, because its ulp is 1
  constexpr float most = 32767;
  const float wide = value * scale;
  const float below = wide < most ? wide : most;
  const float within = below > -most ? below : -most;
  const float sum = within + whole;
  return std::int32_t(sum - whole);
}

inline void quantize(const float* values, std::size_t n, float scale, std::int16_t* out) {
  for (std::size_t j = 0; j < n; ++j) out[j] = std::int16_t(quantized(values[j], scale));
}

// out: pairs of numbers of two rows.
inline void interleave(const std::int16_t* __restrict first, const std::int16_t* __restrict second,
                       std::size_t n, std::int16_t* __restrict out) {
  for (std::size_t j = 0; j < n; ++j) {
    const std::uint32_t pair =
        std::uint32_t(std::uint16_t(first[j])) | std::uint32_t(std::uint16_t(second[j])) << 16;
    std::memcpy(out + 2 * j, &pair, sizeof pair);
  }
}

}  // namespace
DELTAHUB_END
