// The inner loops of the search for low rank, for one instruction set each; all give the same
// numbers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deltahub {

struct SearchKernels {
  // For each of the first kinds of words (see WordKind); null for one without prediction.

  // The greatest magnitude of the words that are numbers, as a word without its sign.
  using Greatest = std::uint32_t (*)(const std::uint8_t* words, std::size_t n);
  Greatest greatest[4];
  // differences[j] = words[j] - base[j], 0 where either is no number.
  using Subtract = void (*)(const std::uint8_t* words, const std::uint8_t* base, std::size_t n,
                            float* differences);
  Subtract subtract[4];
  using SubtractExactly = void (*)(const std::uint8_t* words, const std::uint8_t* base,
                                   std::size_t n, double* differences);
  SubtractExactly subtract_exactly[4];
  // keys[j]: the class of words[j], then the cell and the sign of deltas[j]: see trial.hpp. level:
  // twice log2 of the magnitude that is expected of a delta times 2^exponent.
  using Keys = void (*)(const std::uint8_t* deltas, const std::uint8_t* words, std::size_t n,
                        std::int32_t level, std::uint16_t* keys);
  Keys keys[4];
};

extern const SearchKernels portable_search;
#ifdef __x86_64__
extern const SearchKernels avx2_search;
extern const SearchKernels avx512_search;
#endif

}  // namespace deltahub
