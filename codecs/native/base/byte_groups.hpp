// Joins byte groups: bytes stored in four groups, by their position in 4-byte words, are put back
// in order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deltahub {

// grouped: n bytes: first bytes 0, 4, 8... of out, then bytes 1, 5, 9..., and so on. The buffers
// do not overlap.
inline void join_byte_groups(const std::uint8_t* __restrict grouped, std::size_t n,
                             std::uint8_t* __restrict out) {
  const std::size_t words = n / 4, rest = n % 4;
  const std::uint8_t* group[4];
  for (std::size_t i = 0, start = 0; i < 4; ++i) {
    group[i] = grouped + start;
    start += words + (i < rest);
  }
  for (std::size_t word = 0; word < words; ++word)
    for (std::size_t i = 0; i < 4; ++i) out[4 * word + i] = group[i][word];
  for (std::size_t i = 0; i < rest; ++i) out[4 * words + i] = group[i][words];
}

}  // namespace deltahub
