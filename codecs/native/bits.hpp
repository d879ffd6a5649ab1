// Fields of bits: how a prelude stores its numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace deltahub {

// Fields, least significant bit first.
class BitWriter {
 public:
  void put(std::uint64_t value, int n_bits) {
    for (int i = 0; i < n_bits; ++i, ++position_) {
      if (position_ % 8 == 0) bytes_.push_back(0);
      bytes_.back() |= std::uint8_t((value >> i & 1) << position_ % 8);
    }
  }
  std::vector<std::uint8_t> take() { return std::move(bytes_); }

 private:
  std::vector<std::uint8_t> bytes_;
  std::size_t position_ = 0;
};

// Past the end it reads zeros and is no longer `is_whole`.
class BitReader {
 public:
  BitReader(const std::uint8_t* bytes, std::size_t size) : bytes_(bytes), n_bits_(8 * size) {}

  unsigned get(int n_bits) {
    unsigned value = 0;
    for (int i = 0; i < n_bits; ++i, ++position_)
      if (position_ < n_bits_) value |= unsigned(bytes_[position_ / 8] >> position_ % 8 & 1) << i;
    return value;
  }
  bool is_whole() const { return position_ <= n_bits_; }
  // Skips to a whole byte; false where a bit skipped is set or the end was passed.
  bool align() { return get(int(-position_ & 7)) == 0 && is_whole(); }
  std::size_t byte_position() const { return position_ / 8; }

 private:
  const std::uint8_t* bytes_;
  std::size_t n_bits_;
  std::size_t position_ = 0;
};

}  // namespace deltahub
