// Encoding of streams, from the last value to the first, because tANS decodes in the reverse order
// of encoding.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "coder/sequences.hpp"
#include "coder/tables.hpp"
#include "kernels/ans/bit_stream.hpp"
#include "kernels/kernels.hpp"

namespace deltahub {

// The buffer size, in bytes, that is enough for a stream of n values.
inline std::size_t stream_bound(std::size_t n, unsigned value_bits) {
  return (n * (value_bits - 1 + max_table_log) + n_lanes * max_table_log) / 8 + 16;
}

// Writes sequences from the last to the first; `finish` appends the final states, with which
// decoding begins.
template <class Tables>
class StreamWriter {
 public:
  StreamWriter(const Kernels& kernels, const Tables& rows, std::uint8_t* out)
      : kernels_(kernels), rows_(rows), tables_(rows.tables()), begin_(out) {
    state_.at = out;
    std::fill_n(state_.states, n_lanes, 1u << rows.table_log());
  }

  // n <= chunk.
  template <class Value>
  void write_chunk(const Context* contexts, const Value* values, std::size_t n,
                   PrefetchTargets targets) {
    std::uint16_t row_indices[chunk];
    rows_.find_row_indices(contexts, values, n, row_indices);
    kernel_for<Value>(kernels_.encode_symbols)(state_, tables_, contexts,
                                               reinterpret_cast<const std::uint8_t*>(values),
                                               row_indices, n, targets);
  }
  template <class Value>
  void write(Context context, const Value* values, std::size_t n) {
    const std::vector<Context> contexts(std::min(n, chunk), context);
    for (std::size_t end = n; end > 0;) {
      const std::size_t first = (end - 1) / chunk * chunk;
      const Value* const part = values + first;
      const auto next_part = std::uintptr_t(values + (first > 0 ? first - chunk : 0));
      write_chunk(contexts.data(), part, end - first, {next_part, next_part});
      end = first;
    }
  }
  // Returns the size of the stream in bytes; zero if a table lacks both a symbol and its escape.
  std::size_t finish() {
    ForwardBits bits(state_.at, state_.pending, state_.n_pending);
    for (std::size_t lane = n_lanes; lane-- > 0;)
      bits.put(state_.states[lane] - (1u << rows_.table_log()), unsigned(rows_.table_log()));
    const std::uint8_t* const end = bits.finish();
    return state_.is_missing ? 0 : std::size_t(end - begin_);
  }

 private:
  const Kernels& kernels_;
  const Tables& rows_;
  EncodingTablesView tables_;
  std::uint8_t* begin_;
  EncoderState state_;
};

// Memory that a thread reuses for every block, because touching fresh pages costs as much time as
// coding.
class ReusedBuffer {
 public:
  std::uint8_t* of(std::size_t size) {
    if (size > size_) {
      size_ = 0;  // the allocation may fail
      bytes_.reset();
      bytes_ = std::make_unique_for_overwrite<std::uint8_t[]>(size);
      size_ = size;
    }
    return bytes_.get();
  }

 private:
  std::unique_ptr<std::uint8_t[]> bytes_;
  std::size_t size_ = 0;
};

// The calling thread's buffer for the stream of one block.
inline ReusedBuffer& stream_buffer() {
  thread_local ReusedBuffer buffer;
  return buffer;
}

}  // namespace deltahub
