// The words of a block while it is decoded. (Words are bit patterns of elements: see
// base/words.hpp.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.hpp"

namespace deltahub {

// The result of decoding a block. If it is not sound, no encoder wrote the stream, and the words
// are arbitrary.
struct DecodedBlock {
  bool is_sound = false;
  std::uint64_t checksum = 0;  // of the words
};

// The words of a block during decoding, from the first on. The checksum is updated after each
// chunk, while its words are still in the cache.
class DecodedWords {
 public:
  DecodedWords(const Kernels& kernels, std::uint8_t* out, std::size_t size, std::uint64_t seed)
      : kernels_(kernels), out_(out) {
    kernels.begin_checksum(checksum_, size, seed);
  }
  std::uint8_t* begin() const { return out_; }
  std::uint8_t* at(std::size_t byte) const { return out_ + byte; }
  // The first n_ready bytes of the block are decoded.
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
