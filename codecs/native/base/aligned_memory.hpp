// Memory for numbers that vectors are loaded from.
#pragma once

#include <cstddef>
#include <new>

#include "base/isa.hpp"

DELTAHUB_BEGIN

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

// The same, of numbers that are whatever the memory has until they are set.
template <class Number>
struct UnsetLineAllocator : LineAllocator<Number> {
  UnsetLineAllocator() = default;
  template <class Other>
  UnsetLineAllocator(const UnsetLineAllocator<Other>&) {}
  template <class Other>
  struct rebind {
    using other = UnsetLineAllocator<Other>;
  };
  template <class Other>
  void construct(Other* at) {
    ::new (static_cast<void*>(at)) Other;
  }
  template <class Other, class From>
  void construct(Other* at, const From& from) {
    ::new (static_cast<void*>(at)) Other(from);
  }
};

DELTAHUB_END
