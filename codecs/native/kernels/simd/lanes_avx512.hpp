// Vector operations for decoding and encoding of 32 lanes.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "base/isa.hpp"

DELTAHUB_BEGIN
namespace {

inline __m512i load_vector(const void* at) { return _mm512_loadu_si512(at); }

// A field of 32 lanes in two vectors of 32-bit elements: the even lanes and the odd lanes.
struct Lanes {
  __m512i even, odd;
};

// Like keep_in_memory; also, no load or store moves across this point.
template <class Parts>
inline void keep_here(Parts& parts) {
  asm volatile("" : "+m"(parts));
}

}  // namespace
DELTAHUB_END
