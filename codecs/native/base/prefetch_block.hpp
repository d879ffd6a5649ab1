// Memory of the block that this thread will code next, asked for while numbers keep it busy: the
// block's checksum, which looks at all of it first, would wait for most of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace deltahub {

struct NextBlock {
  std::span<const std::uint8_t> bytes;  // empty: none is known

  // Asks for the share of it that words [first, end) are of the `count` in hand.
  void fetch_share(std::size_t first, std::size_t end, std::size_t count) const {
    constexpr std::size_t line = 64;
    constexpr int for_reading = 0, not_into_the_nearest_cache = 2;
    const std::size_t last = bytes.size() * end / count;
    for (std::size_t byte = bytes.size() * first / count; byte < last; byte += line)
      __builtin_prefetch(&bytes[byte], for_reading, not_into_the_nearest_cache);
  }
};

}  // namespace deltahub
