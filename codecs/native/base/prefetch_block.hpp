// Prefetch of the block that this thread codes next. Without it the checksum of that block, which
// reads all of its bytes first, would wait for memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace deltahub {

struct NextBlock {
  std::span<const std::uint8_t> bytes;  // empty if the next block is unknown

  // Prefetches a share of the bytes: as large as the share of words [first, end) in the `count`
  // words of the current block.
  void prefetch_share(std::size_t first, std::size_t end, std::size_t count) const {
    constexpr std::size_t cache_line_bytes = 64;
    constexpr int for_reading = 0, into_second_level = 2;
    const std::size_t last = bytes.size() * end / count;
    for (std::size_t byte = bytes.size() * first / count; byte < last; byte += cache_line_bytes)
      __builtin_prefetch(&bytes[byte], for_reading, into_second_level);
  }
};

}  // namespace deltahub
