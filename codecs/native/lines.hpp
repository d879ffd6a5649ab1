// Memory for numbers that vectors are loaded from.
#pragma once

#include <cstddef>
#include <new>

#include "isa.hpp"

DELTAHUB_BEGIN
namespace {

// What registers are loaded from begins where a line of the cache does: else most loads take two.
template <class Number>
struct LineAllocator {
  using value_type = Number;
  static constexpr std::align_val_t line{64};

  LineAllocator() = default;
  template <class Other>
  LineAllocator(const LineAllocator<Other>&) {}
  Number* allocate(std::size_t n) {
    return static_cast<Number*>(::operator new(n * sizeof(Number), line));
  }
  void deallocate(Number* numbers, std::size_t) { ::operator delete(numbers, line); }
  bool operator==(const LineAllocator&) const { return true; }
};

}  // namespace
DELTAHUB_END
