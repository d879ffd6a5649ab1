// Bit streams, which are written from the first bit on and read from the last bit on.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/words.hpp"

DELTAHUB_BEGIN

// Reads a stream from its last bit to its first. `position` is the number of unread bits.
class BackwardBits {
 public:
  BackwardBits(const std::uint8_t* bytes, std::size_t size) : bytes_(bytes), size_(size) {
    // The highest set bit of the last byte marks the end of the stream. A stream without it is not
    // sound.
    if (size > 0 && bytes[size - 1] != 0)
      position_ = 8 * (size - 1) + std::size_t(std::bit_width(bytes[size - 1])) - 1;
    else
      is_sound_ = false;
  }
  // Goes on with a stream of which `position` bits are unread.
  static BackwardBits resumed(const std::uint8_t* bytes, std::size_t size, std::size_t position) {
    BackwardBits bits;
    bits.bytes_ = bytes, bits.size_ = size, bits.position_ = position;
    return bits;
  }

  bool is_sound() const { return is_sound_; }
  // Whether n_bits can be skipped, and 16 bytes can be loaded at each position on the way.
  bool has_unread(std::size_t n_bits) const {
    return position_ >= n_bits && position_ / 8 + 16 <= size_;
  }

  // Makes the n bits before the position readable by `peek`. If there are fewer, the stream is no
  // longer sound.
  void skip(unsigned n_bits) {
    if (n_bits > position_) {
      is_sound_ = false;
      position_ = 0;
    } else {
      position_ -= n_bits;
    }
  }
  void skip_unchecked(std::size_t n_bits) { position_ -= n_bits; }

  // At least 57 bits, from `offset` bits above the position on. peek_unchecked needs has_unread.
  std::uint64_t peek_unchecked(unsigned offset = 0) const {
    const std::size_t at = position_ + offset;
    return load<std::uint64_t>(bytes_ + at / 8) >> at % 8;
  }
  std::uint64_t peek(unsigned offset = 0) const {
    const std::size_t at = position_ + offset;
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < 8 && at / 8 + i < size_; ++i)
      value |= std::uint64_t(bytes_[at / 8 + i]) << 8 * i;
    return value >> at % 8;
  }

  // For kernels, which read many bits at once.
  const std::uint8_t* bytes() const { return bytes_; }
  std::size_t position() const { return position_; }

 private:
  BackwardBits() = default;

  const std::uint8_t* bytes_ = nullptr;
  std::size_t size_ = 0;
  std::size_t position_ = 0;
  bool is_sound_ = true;
};

// Appends bits, lowest first. The buffer needs 8 spare bytes after the last bit.
class ForwardBits {
 public:
  explicit ForwardBits(std::uint8_t* out) : at_(out) {}
  // Goes on with a stream whose last n_pending bits are not stored yet.
  ForwardBits(std::uint8_t* at, std::uint64_t pending, unsigned n_pending)
      : at_(at), pending_(pending), n_pending_(n_pending) {}

  // n_bits <= 56, value < 2^n_bits.
  void put(std::uint64_t value, unsigned n_bits) {
    pending_ |= value << n_pending_;
    n_pending_ += n_bits;
    store(at_, pending_);
    at_ += n_pending_ / 8;
    pending_ >>= n_pending_ & ~7u;
    n_pending_ &= 7;
  }
  // Appends the end marker; returns the end of the stream.
  std::uint8_t* finish() {
    put(1, 1);
    if (n_pending_ > 0) *at_++ = std::uint8_t(pending_);
    return at_;
  }
  std::uint8_t* at() const { return at_; }
  std::uint64_t pending() const { return pending_; }
  unsigned n_pending() const { return n_pending_; }

 private:
  std::uint8_t* at_;
  std::uint64_t pending_ = 0;
  unsigned n_pending_ = 0;
};

DELTAHUB_END
