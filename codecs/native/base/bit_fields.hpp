// Bit fields, in which a prelude stores its values.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/words.hpp"

namespace deltahub {

// Packs fields, the least significant bit of each first.
class BitWriter {
 public:
  // n_bits <= 56. Bits of the value above its lowest n_bits are dropped.
  void put(std::uint64_t value, int n_bits) {
    pending_ |= (value & low_masks[std::size_t(n_bits)]) << n_pending_;
    for (n_pending_ += n_bits; n_pending_ >= 8; n_pending_ -= 8, pending_ >>= 8)
      bytes_.push_back(std::uint8_t(pending_));
  }
  std::vector<std::uint8_t> take() {
    put(0, -n_pending_ & 7);
    return std::move(bytes_);
  }

 private:
  std::vector<std::uint8_t> bytes_;
  std::uint64_t pending_ = 0;
  int n_pending_ = 0;  // fewer than 8
};

// Reads fields. Past the end it reads zero bits, and `is_whole` becomes false.
class BitReader {
 public:
  BitReader(const std::uint8_t* bytes, std::size_t size) : bytes_(bytes), size_(size) {}

  // n_bits <= 32.
  unsigned get(int n_bits) {
    const std::uint64_t value = window() & low_masks[std::size_t(n_bits)];
    position_ += std::size_t(n_bits);
    return unsigned(value);
  }
  // Reads a unary count: one bits up to the zero bit that ends them. Returns max_ones + 1 if there
  // are more than max_ones (<= 50) one bits.
  int get_ones(int max_ones) {
    const int ones = std::min(std::countr_one(window()), max_ones + 1);
    position_ += std::size_t(ones) + (ones <= max_ones);
    return ones;
  }
  bool is_whole() const { return position_ <= 8 * size_; }
  // Skips to the next whole byte; false if a skipped bit is set or the end was passed.
  bool align() { return get(int(-position_ & 7)) == 0 && is_whole(); }
  std::size_t byte_position() const { return position_ / 8; }

 private:
  // At least 57 bits, from the position on.
  std::uint64_t window() const {
    const std::size_t at = position_ / 8;
    std::uint64_t bits = 0;
    if (at + 8 <= size_)
      bits = load<std::uint64_t>(bytes_ + at);
    else
      for (std::size_t i = at; i < size_; ++i) bits |= std::uint64_t(bytes_[i]) << 8 * (i - at);
    return bits >> position_ % 8;
  }

  const std::uint8_t* bytes_;
  std::size_t size_;
  std::size_t position_ = 0;
};

}  // namespace deltahub
