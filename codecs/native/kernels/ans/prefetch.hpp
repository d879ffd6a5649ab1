// Prefetch of memory while values are coded.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ans/table_entries.hpp"
#include "kernels/kernels.hpp"

DELTAHUB_BEGIN
namespace {

// Prefetches both targets: the cache lines of one round, from value i on.
template <class Value>
inline void prefetch_round(PrefetchTargets targets, std::size_t i) {
  constexpr std::size_t cache_line_bytes = 64, size = sizeof(Value);
  for (const std::uintptr_t begin : {targets.words, targets.base})
    for (std::size_t at = 0; at < n_lanes * size; at += cache_line_bytes)
      __builtin_prefetch(reinterpret_cast<const void*>(begin + i * size + at));
}

}  // namespace
DELTAHUB_END
