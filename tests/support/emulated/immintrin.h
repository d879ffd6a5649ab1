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

// What SIMDe lacks: entries[index]; of two elements side by side, the 32 bits from a bit on.
static inline __m512i _mm512_i32gather_epi32(__m512i index, const void* entries, int scale) {
  simde__m512i_private found, indices = simde__m512i_to_private(index);
  for (int i = 0; i < 16; ++i) {
    int32_t entry;
    memcpy(&entry, static_cast<const char*>(entries) + int64_t(indices.i32[i]) * scale, 4);
    found.i32[i] = entry;
  }
  return simde__m512i_from_private(found);
}
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

// Any processor is emulated, with and without what makes kernels choose one way or another.
static inline bool is_supported_in_turn() {
  static thread_local bool is_supported;
  return is_supported = !is_supported;
}
#define __builtin_cpu_is(model) true
#define __builtin_cpu_supports(feature) is_supported_in_turn()
