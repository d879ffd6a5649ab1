// A stream as sequences of numbers.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "coder/tables.hpp"
#include "kernels/ans/table_entries.hpp"
#include "kernels/kernels.hpp"

namespace deltahub {

inline constexpr std::size_t chunk = 1024;  // words that go through all passes while they are near

// Of kernels for numbers of several sizes, the one for a word's.
template <class Number, class Kernel>
Kernel of_size(const Kernel (&kernels)[4]) {
  return kernels[std::bit_width(sizeof(Number)) - 1];
}

// A stream that is being read, sequence by sequence.
class Sequences {
 public:
  Sequences(const Kernels& kernels, const DecodingTables& tables, int table_log,
            const std::uint8_t* bytes, std::size_t size)
      : kernels_(kernels), entries_(tables.entries()) {
    kernels.begin(state_, bytes, size, table_log);
  }

  template <class Number>
  void read(const Context* contexts, std::size_t n, std::uint8_t* out, Ahead ahead) {
    if (state_.is_sound)
      of_size<Number>(kernels_.numbers)(state_, entries_, contexts, n, out, ahead);
  }
  // The same of two sound streams that are read by the same tables.
  template <class Number>
  static void read_two(Sequences& a, Sequences& b, const Context* contexts_a,
                       const Context* contexts_b, std::size_t n, std::uint8_t* out_a,
                       std::uint8_t* out_b, Ahead ahead_a, Ahead ahead_b) {
    of_size<Number>(a.kernels_.two_numbers)({&a.state_, &b.state_}, a.entries_,
                                            {contexts_a, contexts_b}, n, {out_a, out_b},
                                            {ahead_a, ahead_b});
  }
  // A whole sequence in one context.
  template <class Number>
  std::vector<Number> read(Context context, std::size_t n) {
    std::vector<Number> numbers(n);
    const std::vector<Context> contexts(std::min(n, chunk), context);
    for (std::size_t i = 0; i < n && state_.is_sound; i += chunk) {
      auto* const out = reinterpret_cast<std::uint8_t*>(numbers.data() + i);
      const auto near = std::uintptr_t(out);
      read<Number>(contexts.data(), std::min(chunk, n - i), out, {near, near});
    }
    return numbers;
  }
  bool is_sound() const { return state_.is_sound; }
  // Every digit was read, and every lane came to rest.
  bool is_finished() const {
    std::uint32_t left = 0;
    for (const std::uint32_t state : state_.states) left |= state;
    return state_.is_sound && state_.position == 0 && left == 0;
  }

 private:
  const Kernels& kernels_;
  const Entry* entries_;
  StreamState state_;
};

}  // namespace deltahub
