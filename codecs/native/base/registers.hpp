// Vectors as long as a register, because compilers keep longer vectors in memory.
#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "base/isa.hpp"

DELTAHUB_BEGIN
namespace {

#if defined(__AVX512F__)
inline constexpr std::size_t register_bytes = 64;
#elif defined(__AVX2__)
inline constexpr std::size_t register_bytes = 32;
#else
inline constexpr std::size_t register_bytes = 16;
#endif
using FloatRegister = float __attribute__((vector_size(register_bytes)));
using DoubleRegister = double __attribute__((vector_size(register_bytes)));
template <class Real>
using Register = std::conditional_t<sizeof(Real) == 4, FloatRegister, DoubleRegister>;

template <class Vector, class Element>
inline void read(Vector& vector, const Element* elements) {
  std::memcpy(&vector, elements, sizeof vector);
}

}  // namespace
DELTAHUB_END
