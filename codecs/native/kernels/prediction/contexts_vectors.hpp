// Contexts, eight words at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/vectors.hpp"
#include "base/words.hpp"
#include "kernels/kernels.hpp"

#define DELTAHUB_HAS_CONTEXTS

DELTAHUB_BEGIN
namespace {

// The exponents of eight words, times four, at least four.
template <class Words>
inline Int16x8 exponents_times_4(const std::uint8_t* words) {
  constexpr int shift = Words::mantissa_bits - 2;
  constexpr auto exponent_mask = std::uint16_t(((1 << Words::exponent_bits) - 1) * 4);
  Int16x8 exponents;
  if constexpr (Words::word_bits == 16) {
    exponents = Int16x8((load_vector<Uint16x8>(words) >> shift) & exponent_mask);
  } else {
    const auto first = Int16x8(load_vector<Uint32x4>(words) >> shift);
    const auto last = Int16x8(load_vector<Uint32x4>(words + 16) >> shift);
    exponents = __builtin_shufflevector(first, last, 0, 2, 4, 6, 8, 10, 12, 14) &
                std::int16_t(exponent_mask);
  }
  const auto least = Int16x8{} + std::int16_t(4);
  return exponents > least ? exponents : least;
}

// Handles whole vectors and returns how many words those are; the caller handles the others.
template <class Words>
std::size_t fast_contexts(const std::uint8_t* words, std::size_t n, int scale,
                          const std::int16_t* columns, const ClassTable& classes, int last,
                          std::uint16_t* out) {
  constexpr std::size_t size = sizeof(typename Words::Word), words_per_vector = 8;
  const Int16x8 zero = {}, last_class = zero + std::int16_t(last),
                row_scale = zero + std::int16_t(scale);
  std::size_t j = 0;
  for (; j + words_per_vector <= n; j += words_per_vector) {
    Int16x8 z = row_scale - exponents_times_4<Words>(words + j * size);
    if (columns) z += load_vector<Int16x8>(columns + j);
    z = z > zero ? z : zero;
    alignas(16) std::uint16_t at[words_per_vector];
    store_vector(at, z < last_class ? z : last_class);
    keep_in_memory(at);
#pragma GCC unroll 8
    for (std::size_t k = 0; k < words_per_vector; ++k) out[j + k] = classes.contexts[at[k]];
  }
  return j;
}

}  // namespace
DELTAHUB_END
