// What decoding and encoding of 32 lanes share.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "base/isa.hpp"

DELTAHUB_BEGIN
namespace {

inline __m512i load_vector(const void* at) { return _mm512_loadu_si512(at); }

// 32 fields of 16 bits: those of the even lanes in the low halves of one vector's elements, those of
// the odd ones in another's; and back.
struct Lanes {
  __m512i even, odd;
};

// As keep_in_memory, and neither the loads nor the stores move beyond this place.
template <class Parts>
inline void keep_here(Parts& parts) {
  asm volatile("" : "+m"(parts));
}

}  // namespace
DELTAHUB_END
