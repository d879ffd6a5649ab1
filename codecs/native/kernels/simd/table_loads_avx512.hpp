// Table elements for 32 lanes, loaded one by one. On Zen 4 gathers made decoding a fifth slower.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "base/words.hpp"
#include "kernels/ans/table_entries.hpp"
#include "kernels/simd/lanes_avx2.hpp"
#include "kernels/simd/lanes_avx512.hpp"

DELTAHUB_BEGIN
namespace {

// One of four 16-bit indices.
inline std::size_t index_at(std::uint64_t four, unsigned lane) {
  if (lane == 0) return std::uint16_t(four);
  if (lane == 3) return four >> 48;
  // without it compilers use three instructions: move, shift, extend
  return _bextr_u64(four, 16 * lane, 16);
}

// entries[index] for all lanes. Each entry is loaded with its neighbours, at an address where it
// falls into its own lane, and blends combine four loads. This takes fewer instructions than
// shuffles of single entries.
inline Lanes entries_of_lanes(const Entry* entries, __m512i index) {
  const auto four = [&](std::uint64_t low, std::uint64_t high, unsigned odd) {
    const auto at = [&](std::uint64_t four_indices, unsigned lane, std::size_t lane_in_vector) {
      const Entry* const found = entries + index_at(four_indices, lane);
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(found - lane_in_vector));
    };
    __m128i all = _mm_cvtsi32_si128(int(entries[index_at(low, odd)]));
    all = _mm_blend_epi32(all, at(low, 2 + odd, 1), 1 << 1);
    all = _mm_blend_epi32(all, at(high, odd, 2), 1 << 2);
    return _mm_blend_epi32(all, at(high, 2 + odd, 3), 1 << 3);
  };
  const __m128i indices[4] = {
      _mm512_castsi512_si128(index), _mm512_extracti32x4_epi32(index, 1),
      _mm512_extracti32x4_epi32(index, 2), _mm512_extracti32x4_epi32(index, 3)};
  __m128i even[4], odd[4];
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    const auto low = std::uint64_t(_mm_cvtsi128_si64(indices[k]));
    const auto high = std::uint64_t(_mm_extract_epi64(indices[k], 1));
    even[k] = four(low, high, 0);
    odd[k] = four(low, high, 1);
  }
  const auto whole = [](const __m128i(&parts)[4]) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(pair_of(parts[0], parts[1])),
                              pair_of(parts[2], parts[3]), 1);
  };
  return {whole(even), whole(odd)};
}

// Four 32-bit elements, each loaded with its neighbours, at an address where it falls into its own
// lane, which blends keep. index(k): the index of the k-th element.
template <class Element, class Index>
[[gnu::always_inline]] inline __m128i elements_at(const Element* elements, Index&& index) {
  const auto element = [&](unsigned k) {
    constexpr std::ptrdiff_t size = 4 / sizeof(Element);
    return reinterpret_cast<const __m128i*>(elements + index(k) - std::ptrdiff_t(k) * size);
  };
  __m128i all = _mm_loadu_si32(element(0));
  all = _mm_blend_epi32(all, _mm_loadu_si128(element(1)), 1 << 1);
  all = _mm_blend_epi32(all, _mm_loadu_si128(element(2)), 1 << 2);
  return _mm_blend_epi32(all, _mm_loadu_si128(element(3)), 1 << 3);
}

// Every second of eight lanes, whose indices were just stored. Four indices are read by one load,
// because few loads of just-stored data run in parallel.
template <class Element>
[[gnu::always_inline]] inline __m128i elements_of_eight(const Element* elements,
                                                        const std::uint16_t* at, unsigned odd) {
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(at);
  const std::uint64_t fours[] = {load<std::uint64_t>(bytes), load<std::uint64_t>(bytes + 8)};
  return elements_at(elements,
                     [&](unsigned k) { return index_at(fours[k / 2], 2 * (k % 2) + odd); });
}

// Elements in groups of eight lanes, even and odd lanes apart.
struct GroupsOfEight {
  __m128i even[n_lanes / 8], odd[n_lanes / 8];

  Lanes lanes() const {
    const auto whole = [](const __m128i* eight) {
      return _mm512_inserti64x4(_mm512_castsi256_si512(pair_of(eight[0], eight[1])),
                                pair_of(eight[2], eight[3]), 1);
    };
    return {whole(even), whole(odd)};
  }
};

// Indices that are passed through memory, from a vector to the loads.
class StateIndices {
 public:
  explicit StateIndices(__m512i all) {
    _mm512_store_si512(at_, all);
    keep_here(at_);
  }
  // The next states at the indices; those of the odd lanes are in the high halves.
  Lanes states(const std::uint16_t* next_states) {
    keep_here(at_);
    GroupsOfEight found;
#pragma GCC unroll 4
    for (unsigned k = 0; k < n_lanes / 8; ++k) {
      found.even[k] = elements_of_eight(next_states, at_ + 8 * k, 0);
      found.odd[k] = elements_of_eight(next_states - 1, at_ + 8 * k, 1);
    }
    return found.lanes();
  }

 private:
  alignas(64) std::uint16_t at_[n_lanes];
};

// The rows of 32 row indices. Between the loads it calls other_work(k), for k from 7 to 0.
template <class OtherWork>
[[gnu::always_inline]] inline Lanes rows_of_lanes(const std::uint32_t* rows,
                                                  const std::uint16_t* row_indices,
                                                  OtherWork&& other_work) {
  GroupsOfEight found;
#pragma GCC unroll 4
  for (unsigned k = 0; k < n_lanes / 8; ++k) {
    other_work(n_lanes / 4 - 1 - 2 * k);
    found.even[k] = elements_at(rows, [at = row_indices + 8 * k](unsigned j) { return at[2 * j]; });
    other_work(n_lanes / 4 - 2 - 2 * k);
    found.odd[k] =
        elements_at(rows, [at = row_indices + 8 * k](unsigned j) { return at[2 * j + 1]; });
  }
  return found.lanes();
}

}  // namespace
DELTAHUB_END
