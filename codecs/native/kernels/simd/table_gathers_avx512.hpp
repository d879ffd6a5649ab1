// The functions of kernels/simd/table_loads_avx512.hpp by gathers, for processors on which these
// are faster: see kernels/dispatch.hpp.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/ans/table_entries.hpp"
#include "kernels/simd/lanes_avx512.hpp"

DELTAHUB_BEGIN
namespace {

// The 32 bits at each of 32 indices. odd: the first element for the odd lanes.
template <class Element>
inline Lanes gathered(const Element* elements, const Element* odd, __m512i index) {
  return {_mm512_i32gather_epi32(_mm512_and_si512(index, _mm512_set1_epi32(0xffff)), elements,
                                 sizeof(Element)),
          _mm512_i32gather_epi32(_mm512_srli_epi32(index, 16), odd, sizeof(Element))};
}

inline Lanes entries_of_lanes(const Entry* entries, __m512i index) {
  return gathered(entries, entries, index);
}

class StateIndices {
 public:
  explicit StateIndices(__m512i all) : all_(all) {}
  Lanes states(const std::uint16_t* next_states) const {
    return gathered(next_states, next_states - 1, all_);
  }

 private:
  __m512i all_;
};

template <class OtherWork>
[[gnu::always_inline]] inline Lanes rows_of_lanes(const std::uint32_t* rows,
                                                  const std::uint16_t* row_indices,
                                                  OtherWork&& other_work) {
  for (unsigned k = n_lanes / 4; k-- > 0;) other_work(k);
  return gathered(rows, rows, load_vector(row_indices));
}

}  // namespace
DELTAHUB_END
