// Encoding of fm_delta blocks: the mirror of decode.hpp, from the last word to the first.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "decode.hpp"
#include "model.hpp"
#include "words.hpp"

namespace deltahub {

// Appends bits, lowest first. The caller's buffer has 8 bytes to spare after the last bit.
class ForwardBits {
 public:
  explicit ForwardBits(std::uint8_t* out) : begin_(out), at_(out) {}

  // n_bits <= 57, value < 2^n_bits.
  void put(std::uint64_t value, unsigned n_bits) {
    pending_ |= value << n_pending_;
    n_pending_ += n_bits;
    store(at_, pending_);
    at_ += n_pending_ / 8;
    pending_ >>= n_pending_ & ~7u;
    n_pending_ &= 7;
  }
  // Ends the stream with its marker bit; returns its size in bytes.
  std::size_t finish() {
    put(1, 1);
    if (n_pending_ > 0) *at_++ = std::uint8_t(pending_);
    return std::size_t(at_ - begin_);
  }

 private:
  std::uint8_t* begin_;
  std::uint8_t* at_;
  std::uint64_t pending_ = 0;
  unsigned n_pending_ = 0;
};

// One model made ready: immutable, shared by all threads.
template <class Words>
class Encoder {
 public:
  using Word = typename Words::Word;

  explicit Encoder(const Model& model)
      : table_log_(model.table_log), context_of_(contexts_by_key(model, Words::n_keys)) {
    const unsigned n_states = 1u << table_log_;
    next_states_.resize(model.contexts.size() * n_states);
    rows_.resize(model.contexts.size() * n_columns);
    for (std::size_t i = 0; i < model.contexts.size(); ++i) {
      const Context& context = model.contexts[i];
      shifts_.push_back(context.shift);
      std::array<std::uint32_t, n_symbols> place;
      std::uint32_t start = std::uint32_t(i) * n_states;
      for (int symbol = 0; symbol < n_symbols; ++symbol) {
        place[symbol] = start;
        rows_[i * n_columns + symbol] = row_of(context, symbol, start);
        start += context.frequencies[symbol];
      }
      // What the sample never saw is escaped.
      for (int symbol = 1; symbol < n_symbols; ++symbol)
        if (context.frequencies[symbol] == 0)
          rows_[i * n_columns + symbol] = rows_[i * n_columns];
      for_each_state(context, table_log_, [&](unsigned state, int symbol) {
        next_states_[place[symbol]++] = std::uint16_t(n_states + state);
      });
    }
  }

  // How large a buffer `encode` needs for n words.
  static std::size_t bound_bytes(std::size_t n) {
    return (n * (Words::word_bits + max_table_log) + n_lanes * max_table_log) / 8 + 16;
  }

  // source, base: n >= 1 words; out: bound_bytes(n). Returns the stream's size in bytes.
  std::size_t encode(const std::uint8_t* source, const std::uint8_t* base, std::size_t n,
                     std::uint8_t* out) const {
    const std::uint32_t n_states = 1u << table_log_;
    ForwardBits bits(out);
    std::uint32_t states[n_lanes];
    for (auto& state : states) state = n_states;
    std::size_t i = n;
    while (i % n_lanes != 0) --i, encode_word(bits, states[i % n_lanes], source, base, i);
    while (i > 0) {
#pragma GCC unroll 8
      for (int lane = n_lanes - 1; lane >= 0; --lane)
        encode_word(bits, states[lane], source, base, --i);
    }
    for (std::size_t lane = std::min(n, n_lanes); lane-- > 0;)
      bits.put(states[lane] - n_states, unsigned(table_log_));
    return bits.finish();
  }

 private:
  static constexpr std::size_t n_columns = 64;

  // state -> ((state + add_for_bits) >> 16) bits to write, then next_states_[(state >> bits) + first]
  struct Row {
    Word raw_mask;
    std::uint32_t add_for_bits;
    std::int32_t first;
    std::uint32_t raw_bits;
  };

  Row row_of(const Context& context, int symbol, std::uint32_t start) const {
    const std::uint32_t frequency = context.frequencies[symbol];
    const unsigned n_raw = raw_bits_of(symbol, context.shift, Words::word_bits);
    const unsigned most_bits =
        frequency > 1 ? unsigned(table_log_ + 1 - std::bit_width(frequency - 1)) : table_log_;
    return {.raw_mask = n_raw == 64 ? Word(~Word(0)) : Word(low_bits(n_raw)),
            .add_for_bits = (most_bits << 16) - (frequency << most_bits),
            .first = std::int32_t(start) - std::int32_t(frequency),
            .raw_bits = n_raw};
  }

  void encode_word(ForwardBits& bits, std::uint32_t& state, const std::uint8_t* source,
                   const std::uint8_t* base, std::size_t i) const {
    const Word from = load<Word>(base + i * sizeof(Word));
    const Word delta = Words::delta(load<Word>(source + i * sizeof(Word)), from);
    const Word negative = Word(delta >> (Words::word_bits - 1));
    const unsigned context = context_of_[Words::key(from)];
    const unsigned symbol =
        symbol_of(Word(delta ^ (Word(0) - negative)), unsigned(negative), shifts_[context]);
    const Row& row = rows_[context * n_columns + symbol];
    const unsigned n_bits = (state + row.add_for_bits) >> 16;
    const std::uint64_t low = state & low_bits(n_bits);
    const std::uint64_t raw = delta & row.raw_mask;
    state = next_states_[std::size_t((state >> n_bits) + row.first)];
    if constexpr (Words::word_bits == 64) {
      const unsigned n_low = std::min(row.raw_bits, 32u);
      bits.put(low | (raw & low_bits(n_low)) << n_bits, n_bits + n_low);
      bits.put(raw >> n_low, row.raw_bits - n_low);
    } else {
      bits.put(low | raw << n_bits, n_bits + row.raw_bits);
    }
  }

  int table_log_;
  std::vector<std::uint8_t> context_of_;
  std::vector<unsigned> shifts_;
  std::vector<Row> rows_;
  std::vector<std::uint16_t> next_states_;
};

}  // namespace deltahub
