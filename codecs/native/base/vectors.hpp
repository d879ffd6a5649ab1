// Vectors by the extension of GCC and Clang, without intrinsics, for any processor.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/isa.hpp"

DELTAHUB_BEGIN
namespace {

using Int16x8 = std::int16_t __attribute__((vector_size(16)));
using Int32x4 = std::int32_t __attribute__((vector_size(16)));
using Float32x4 = float __attribute__((vector_size(16)));
using Float64x2 = double __attribute__((vector_size(16)));
// Unsigned, so that sums wrap around.
using Uint8x16 = std::uint8_t __attribute__((vector_size(16)));
using Uint16x8 = std::uint16_t __attribute__((vector_size(16)));
using Uint32x4 = std::uint32_t __attribute__((vector_size(16)));
using Uint64x2 = std::uint64_t __attribute__((vector_size(16)));

// Vectors as wide as this set of kernels has them.
#if defined(__AVX512BW__)
inline constexpr int vector_bytes = 64;
#elif defined(__AVX2__)
inline constexpr int vector_bytes = 32;
#else
inline constexpr int vector_bytes = 16;
#endif
using Uint16xN = std::uint16_t __attribute__((vector_size(vector_bytes)));
using Uint32xN = std::uint32_t __attribute__((vector_size(vector_bytes)));

template <class Vector>
inline Vector load_vector(const void* at) {
  Vector vector;
  std::memcpy(&vector, at, sizeof vector);
  return vector;
}
template <class Vector>
inline void store_vector(void* at, Vector vector) {
  std::memcpy(at, &vector, sizeof vector);
}

// Keeps elements in memory that are read one by one, because compilers would otherwise extract
// them from vectors, which is slower than a load.
template <class Parts>
inline void keep_in_memory(Parts& parts) {
  asm("" : "+m"(parts));
}

// Whether any bit is set.
template <class Vector>
inline bool is_any(Vector vector) {
  const auto halves = Uint64x2(vector);
  return (halves[0] | halves[1]) != 0;
}

}  // namespace
DELTAHUB_END
