// Shared by the fuzzers of the decoders: reading fields from an input, and buffers in which
// sanitizers notice any byte read or written outside.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "kernels/codec_interface.hpp"

namespace deltahub {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t most_rows = 256, most_columns = 16384;
constexpr std::size_t most_words = std::size_t(1) << 14;  // of a block: enough for many chunks

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// A heap buffer of exactly this size; a vector may have spare capacity.
struct Exact {
  explicit Exact(std::size_t n) : size(n), data(new std::uint8_t[n]) {}
  explicit Exact(View bytes) : Exact(bytes.size()) {
    std::copy(bytes.begin(), bytes.end(), data.get());
  }
  View view() const { return {data.get(), size}; }
  std::size_t size;
  std::unique_ptr<std::uint8_t[]> data;
};

// Reads an input front to back: numbers of 16 bits, then bytes. Beyond its end numbers are 0.
class Input {
 public:
  explicit Input(View bytes) : rest_(bytes) {}

  std::size_t number(std::size_t end) {
    const View two = bytes(2);
    std::size_t value = 0;
    for (std::size_t i = 0; i < two.size(); ++i) value |= std::size_t(two[i]) << 8 * i;
    return value % end;
  }
  View bytes(std::size_t n) {
    const View taken = rest_.first(std::min(n, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  View rest() { return bytes(rest_.size()); }

 private:
  View rest_;
};

}  // namespace
}  // namespace deltahub
