// Memory aligned to cache lines, for elements that vector registers are loaded from.
#pragma once

#include <cstddef>
#include <new>

#include "base/isa.hpp"

DELTAHUB_BEGIN

// The memory begins at a cache line (64 bytes), because most loads of unaligned 64-byte vectors
// touch two lines.
template <class Element>
struct LineAllocator {
  using value_type = Element;
  static constexpr std::align_val_t cache_line{64};

  LineAllocator() = default;
  template <class Other>
  LineAllocator(const LineAllocator<Other>&) {}
  Element* allocate(std::size_t n) {
    return static_cast<Element*>(::operator new(n * sizeof(Element), cache_line));
  }
  void deallocate(Element* elements, std::size_t) { ::operator delete(elements, cache_line); }
  bool operator==(const LineAllocator&) const { return true; }
};

// The same, but elements are not initialized until they are assigned.
template <class Element>
struct UnsetLineAllocator : LineAllocator<Element> {
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
