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
// The 32 bits at each of 16 indices of `scale` bytes.
static inline __m512i _mm512_i32gather_epi32(__m512i index, const void* begin, int scale) {
  simde__m512i_private found, indices = simde__m512i_to_private(index);
  for (int i = 0; i < 16; ++i)
    found.i32[i] = simde_mm_cvtsi128_si32(simde_mm_loadu_si32(
        static_cast<const uint8_t*>(begin) + int64_t(indices.i32[i]) * scale));
  return simde__m512i_from_private(found);
}

#define _MM_PERM_BADC 0x4e
static inline uint64_t _bextr_u64(uint64_t value, unsigned begin, unsigned n_bits) {
  return value >> begin & ((uint64_t(1) << n_bits) - 1);
}
static inline __m256i _mm512_cvtepi32_epi16(__m512i a) {
  simde__m256i_private found;
  const simde__m512i_private from = simde__m512i_to_private(a);
  for (int i = 0; i < 16; ++i) found.i16[i] = int16_t(from.i32[i]);
  return simde__m256i_from_private(found);
}
static inline __mmask32 _mm512_cmpgt_epu16_mask(__m512i a, __m512i b) {
  const simde__m512i_private one = simde__m512i_to_private(a), other = simde__m512i_to_private(b);
  __mmask32 found = 0;
  for (int i = 0; i < 32; ++i) found |= __mmask32(one.u16[i] > other.u16[i]) << i;
  return found;
}
static inline __mmask16 _mm512_testn_epi32_mask(__m512i a, __m512i b) {
  return __mmask16(~_mm512_test_epi32_mask(a, b));
}
static inline __m512i _mm512_mulhi_epu16(__m512i a, __m512i b) {
  simde__m512i_private found, one = simde__m512i_to_private(a), other = simde__m512i_to_private(b);
  for (int i = 0; i < 32; ++i)
    found.u16[i] = uint16_t(uint32_t(one.u16[i]) * other.u16[i] >> 16);
  return simde__m512i_from_private(found);
}
static inline __m512i _mm512_srav_epi32(__m512i a, __m512i n_bits) {
  simde__m512i_private found, one = simde__m512i_to_private(a), n = simde__m512i_to_private(n_bits);
  for (int i = 0; i < 16; ++i) found.i32[i] = one.i32[i] >> (n.u32[i] < 31 ? n.u32[i] : 31);
  return simde__m512i_from_private(found);
}
