// A stream, read as sequences of values. A value is a tANS symbol followed by its raw bits.
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

// words that pass all steps of coding together, so that they stay in the cache
inline constexpr std::size_t chunk = 1024;

// Of kernels for values of 8, 16, 32 and 64 bits, the one for `Value`.
template <class Value, class Kernel>
Kernel kernel_for(const Kernel (&kernels)[4]) {
  return kernels[std::bit_width(sizeof(Value)) - 1];
}

// Reads a stream, sequence by sequence.
class Sequences {
 public:
  Sequences(const Kernels& kernels, const DecodingTables& tables, int table_log,
            const std::uint8_t* bytes, std::size_t size)
      : kernels_(kernels), entries_(tables.entries()) {
    kernels.begin(state_, bytes, size, table_log);
  }

  template <class Value>
  void read(const Context* contexts, std::size_t n, std::uint8_t* out, PrefetchTargets targets) {
    if (state_.is_sound)
      kernel_for<Value>(kernels_.decode_symbols)(state_, entries_, contexts, n, out, targets);
  }
  // Reads from two sound streams at once, which use the same tables.
  template <class Value>
  static void read_two(Sequences& a, Sequences& b, const Context* contexts_a,
                       const Context* contexts_b, std::size_t n, std::uint8_t* out_a,
                       std::uint8_t* out_b, PrefetchTargets targets_a, PrefetchTargets targets_b) {
    kernel_for<Value>(a.kernels_.decode_two_streams)({&a.state_, &b.state_}, a.entries_,
                                                     {contexts_a, contexts_b}, n, {out_a, out_b},
                                                     {targets_a, targets_b});
  }
  // Reads a whole sequence whose values have one context.
  template <class Value>
  std::vector<Value> read(Context context, std::size_t n) {
    std::vector<Value> values(n);
    const std::vector<Context> contexts(std::min(n, chunk), context);
    for (std::size_t i = 0; i < n && state_.is_sound; i += chunk) {
      auto* const out = reinterpret_cast<std::uint8_t*>(values.data() + i);
      const auto target = std::uintptr_t(out);
      read<Value>(contexts.data(), std::min(chunk, n - i), out, {target, target});
    }
    return values;
  }
  bool is_sound() const { return state_.is_sound; }
  // Whether every bit was read and every lane is in the state with which encoding began.
  bool is_finished() const {
    std::uint32_t left = 0;
    for (const std::uint32_t state : state_.states) left |= state;
    return state_.is_sound && state_.position == 0 && left == 0;
  }

 private:
  const Kernels& kernels_;
  const Entry* entries_;
  DecoderState state_;
};

}  // namespace deltahub
