// A block's words while they are made.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.hpp"

namespace deltahub {

// What decoding a block has come to. Where it is not sound no encoder wrote it, and its words are
// arbitrary.
struct DecodedBlock {
  bool is_sound = false;
  std::uint64_t checksum = 0;  // of its words
};

// A block's words in mid-decoding, from the first on. Their checksum takes them in while they are
// near.
class DecodedWords {
 public:
  DecodedWords(const Kernels& kernels, std::uint8_t* out, std::size_t size, std::uint64_t seed)
      : kernels_(kernels), out_(out) {
    kernels.begin_checksum(checksum_, size, seed);
  }
  std::uint8_t* begin() const { return out_; }
  std::uint8_t* at(std::size_t byte) const { return out_ + byte; }
  // The first n_ready bytes are there.
  void add(std::size_t n_ready) { kernels_.add_checksum(checksum_, out_, n_ready); }
  DecodedBlock finish(bool is_sound) {
    if (!is_sound) return {};
    return {true, kernels_.end_checksum(checksum_, out_)};
  }

 private:
  const Kernels& kernels_;
  std::uint8_t* out_;
  ChecksumState checksum_;
};

}  // namespace deltahub
