// What the type-erased interfaces of both codecs share: views, argument checks, checksums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

#include "base/words.hpp"
#include "kernels/kernels.hpp"

namespace deltahub {

using View = std::span<const std::uint8_t>;

inline void require(bool is_met, const char* fault) {
  if (!is_met) throw std::invalid_argument(fault);
}

inline std::uint64_t checksum_of(const Kernels& kernels, const std::uint8_t* bytes, std::size_t n,
                                 std::uint64_t seed) {
  ChecksumState state;
  kernels.begin_checksum(state, n, seed);
  return kernels.end_checksum(state, bytes);
}

inline WordKind word_kind(int kind) {
  require(kind >= 0 && kind <= int(WordKind::int64), "no such kind of words");
  return WordKind(kind);
}

}  // namespace deltahub
