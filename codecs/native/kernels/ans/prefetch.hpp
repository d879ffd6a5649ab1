// Memory that is asked for while numbers are read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ans/table_entries.hpp"
#include "kernels/kernels.hpp"

DELTAHUB_BEGIN
namespace {

// As much of both as a round of numbers makes words, from number i on.
template <class Number>
inline void ask_for_round(Ahead ahead, std::size_t i) {
  constexpr std::size_t line = 64, size = sizeof(Number);
  for (const std::uintptr_t begin : {ahead.words, ahead.base})
    for (std::size_t at = 0; at < n_lanes * size; at += line)
      __builtin_prefetch(reinterpret_cast<const void*>(begin + i * size + at));
}

}  // namespace
DELTAHUB_END
