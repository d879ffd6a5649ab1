// Encoding of streams: from the last number to the first, as decoding goes the other way.
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

// How large a buffer takes a stream of so many digits' worth of numbers.
inline std::size_t stream_bound(std::size_t n, unsigned number_bits) {
  return (n * (number_bits - 1 + max_table_log) + n_lanes * max_table_log) / 8 + 16;
}

// Writes sequences from the last to the first; `finish` puts the states in front of them.
template <class Rows>
class StreamWriter {
 public:
  StreamWriter(const Kernels& kernels, const Rows& rows, std::uint8_t* out)
      : kernels_(kernels), rows_(rows), tables_(rows.tables()), begin_(out) {
    state_.at = out;
    std::fill_n(state_.states, n_lanes, 1u << rows.table_log());
  }

  // n <= chunk.
  template <class Number>
  void write_part(const Context* contexts, const Number* numbers, std::size_t n, Ahead ahead) {
    std::uint16_t places[chunk];
    rows_.find_places(contexts, numbers, n, places);
    of_size<Number>(kernels_.write)(state_, tables_, contexts,
                                    reinterpret_cast<const std::uint8_t*>(numbers), places, n,
                                    ahead);
  }
  template <class Number>
  void write(Context context, const Number* numbers, std::size_t n) {
    const std::vector<Context> contexts(std::min(n, chunk), context);
    for (std::size_t end = n; end > 0;) {
      const std::size_t first = (end - 1) / chunk * chunk;
      const Number* const part = numbers + first;
      const auto near = std::uintptr_t(numbers + (first > 0 ? first - chunk : 0));
      write_part(contexts.data(), part, end - first, {near, near});
      end = first;
    }
  }
  // The stream's size in bytes; zero where the tables lack a number.
  std::size_t finish() {
    ForwardBits bits(state_.at, state_.pending, state_.n_pending);
    for (std::size_t lane = n_lanes; lane-- > 0;)
      bits.put(state_.states[lane] - (1u << rows_.table_log()), unsigned(rows_.table_log()));
    const std::uint8_t* const end = bits.finish();
    return state_.is_missing ? 0 : std::size_t(end - begin_);
  }

 private:
  const Kernels& kernels_;
  const Rows& rows_;
  EncodingTables tables_;
  std::uint8_t* begin_;
  WriterState state_;
};

// Memory that a thread keeps from block to block: fresh pages cost as much as coding does.
class ReusedBytes {
 public:
  std::uint8_t* of(std::size_t size) {
    if (size > size_) {
      size_ = 0;  // there may be no memory
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

// A thread's room for the stream of one block.
inline ReusedBytes& stream_room() {
  thread_local ReusedBytes room;
  return room;
}

}  // namespace deltahub
