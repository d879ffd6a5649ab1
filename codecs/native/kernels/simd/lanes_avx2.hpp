// Vector operations for decoding and encoding of eight lanes.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "base/words.hpp"

DELTAHUB_BEGIN
namespace {

inline __m256i low_bits(__m256i value, __m256i n_bits) {
  return _mm256_andnot_si256(_mm256_sllv_epi32(_mm256_set1_epi32(-1), n_bits), value);
}

inline __m256i pair_of(__m128i low, __m128i high) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

// entries[index], 32 bits each, for eight lanes. Loaded one by one, which takes half the time of a
// gather on the processors where it was measured.
template <class Entry>
inline __m256i entries_at(const Entry* entries, __m256i index) {
  const auto at = [&](std::uint64_t i) {
    return _mm_cvtsi32_si128(load<int>(reinterpret_cast<const std::uint8_t*>(entries + i)));
  };
  const auto two = [&](std::uint64_t pair) {
    return _mm_unpacklo_epi32(at(std::uint32_t(pair)), at(pair >> 32));
  };
  const auto four = [&](__m128i at) {
    return _mm_unpacklo_epi64(two(std::uint64_t(_mm_cvtsi128_si64(at))),
                              two(std::uint64_t(_mm_extract_epi64(at, 1))));
  };
  return pair_of(four(_mm256_castsi256_si128(index)), four(_mm256_extracti128_si256(index, 1)));
}

}  // namespace
DELTAHUB_END
