// Stands in for the compiler's <immintrin.h> where kernels for AVX2 or AVX-512 are built for any
// processor: SIMDe does in plain C++ what the instructions do. The macros that say which kernels
// are meant (-D__AVX512F__, -D__AVX2__) are hidden from it, else it would use the instructions.
#pragma once

#pragma push_macro("__AVX2__")
#pragma push_macro("__AVX512F__")
#undef __AVX2__
#undef __AVX512F__
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx2.h>
#include <simde/x86/avx512.h>
#pragma pop_macro("__AVX512F__")
#pragma pop_macro("__AVX2__")

// What SIMDe lacks: of two elements side by side, the bits from one on.
static inline __m512i _mm512_shrdv_epi32(__m512i low, __m512i high, __m512i bit) {
  simde__m512i_private found, lows = simde__m512i_to_private(low),
                              highs = simde__m512i_to_private(high),
                              bits = simde__m512i_to_private(bit);
  for (int i = 0; i < 16; ++i) {
    const uint64_t both = uint64_t(highs.u32[i]) << 32 | lows.u32[i];
    found.u32[i] = uint32_t(both >> (bits.u32[i] & 31));
  }
  return simde__m512i_from_private(found);
}
static inline __m512i _mm512_shrdv_epi16(__m512i low, __m512i high, __m512i bit) {
  simde__m512i_private found, lows = simde__m512i_to_private(low),
                              highs = simde__m512i_to_private(high),
                              bits = simde__m512i_to_private(bit);
  for (int i = 0; i < 32; ++i) {
    const uint32_t both = uint32_t(highs.u16[i]) << 16 | lows.u16[i];
    found.u16[i] = uint16_t(both >> (bits.u16[i] & 15));
  }
  return simde__m512i_from_private(found);
}
static inline __m512i _mm512_shrdi_epi16(__m512i low, __m512i high, int bit) {
  return _mm512_shrdv_epi16(low, high, _mm512_set1_epi16(short(bit)));
}
