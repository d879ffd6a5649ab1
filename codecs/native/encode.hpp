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

  // n_bits <= 56, value < 2^n_bits.
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
  using Wide = typename Words::Wide;

  explicit Encoder(const Model& model) : table_log_(model.table_log) {
    const unsigned n_states = 1u << table_log_;
    next_states_.resize(model.contexts.size() * n_states);
    rows_.resize(model.contexts.size() * n_places);
    for (std::size_t i = 0; i < model.contexts.size(); ++i) {
      const Context& context = model.contexts[i];
      std::array<std::uint32_t, n_symbols> start;
      std::uint32_t end = std::uint32_t(i) * n_states;
      for (int symbol = 0; symbol < n_symbols; ++symbol) {
        start[symbol] = end;
        end += context.frequencies[symbol];
      }
      for (unsigned place = 0; place < n_places; ++place) {
        const int symbol = symbol_of_place(place);
        // What the sample never saw is escaped.
        const int used = context.frequencies[symbol] ? symbol : 0;
        rows_[i * n_places + place] = row_of(context, used, start[used]);
      }
      for_each_state(context, table_log_, [&](unsigned state, int symbol) {
        next_states_[start[symbol]++] = std::uint16_t(n_states + state);
      });
    }
    const auto context_of = contexts_by_key(model, Words::n_keys);
    for (const unsigned context : context_of)
      of_key_.push_back({.first_row = std::uint16_t(context * n_places),
                         .shift = std::uint16_t(model.contexts[context].shift)});
  }

  // How large a buffer `encode` needs for n words.
  static std::size_t bound_bytes(std::size_t n) {
    return (n * (Words::word_bits + max_table_log) + n_lanes * max_table_log) / 8 + 16;
  }

  // source, base: n >= 1 words; out: bound_bytes(n). Returns the stream's size in bytes.
  std::size_t encode(const std::uint8_t* source, const std::uint8_t* base, std::size_t n,
                     std::uint8_t* out) const {
    const Tables tables{of_key_.data(), rows_.data(), next_states_.data()};
    const std::uint32_t n_states = 1u << table_log_;
    ForwardBits bits(out);
    std::uint32_t states[n_lanes];
    for (auto& state : states) state = n_states;
    std::size_t i = n;
    while (i % n_lanes != 0) --i, encode_words<1>(tables, bits, &states[i % n_lanes], source, base, i);
    while (i > 0) {
#pragma GCC unroll 8
      for (std::size_t lane = n_lanes; lane > 0;) {
        lane -= together, i -= together;
        encode_words<together>(tables, bits, &states[lane], source, base, i);
      }
    }
    for (std::size_t lane = std::min(n, n_lanes); lane-- > 0;)
      bits.put(states[lane] - n_states, unsigned(table_log_));
    return bits.finish();
  }

 private:
  static constexpr unsigned n_places = 2 * (n_cells + 1);

  struct OfKey {
    std::uint16_t first_row;
    std::uint16_t shift;
  };
  // state -> (state + add_for_bits) >> 16 bits to write, then next_states[(state >> bits) + first]
  struct Row {
    Wide raw_mask;
    std::uint32_t add_for_bits;
    std::int32_t first;
    std::uint32_t raw_bits;
  };
  // Plain pointers in registers: a store through `out` could alias the vectors' own.
  struct Tables {
    const OfKey* of_key;
    const Row* rows;
    const std::uint16_t* next_states;
  };

  Row row_of(const Context& context, int symbol, std::uint32_t start) const {
    const std::uint32_t frequency = context.frequencies[symbol];
    const unsigned n_raw = raw_bits_of(symbol, context.shift, Words::word_bits);
    const unsigned most_bits =
        frequency > 1 ? unsigned(table_log_ + 1 - std::bit_width(frequency - 1)) : table_log_;
    return {.raw_mask = Wide(low_masks[n_raw]),
            .add_for_bits = (most_bits << 16) - (frequency << most_bits),
            .first = std::int32_t(start) - std::int32_t(frequency),
            .raw_bits = n_raw};
  }

  // As many words as one `put` surely takes, and no more than pay.
  static constexpr std::size_t together = Words::word_bits + max_table_log <= 28 ? 2 : 1;

  template <std::size_t COUNT>
  static void encode_words(const Tables tables, ForwardBits& bits, std::uint32_t* states,
                           const std::uint8_t* source, const std::uint8_t* base, std::size_t i) {
    std::uint64_t pending = 0;
    unsigned n_pending = 0;
    for (std::size_t k = COUNT; k-- > 0;) {
      const Wide from = load<Word>(base + (i + k) * sizeof(Word));
      const Wide delta = Words::delta(load<Word>(source + (i + k) * sizeof(Word)), from);
      const Wide negative = sign_mask(delta);
      const OfKey of_key = tables.of_key[Words::key(from)];
      const unsigned place =
          2 * cell_of((delta ^ negative) >> of_key.shift) + unsigned(negative & 1);
      const Row& row = tables.rows[of_key.first_row + place];
      const unsigned n_bits = (states[k] + row.add_for_bits) >> 16;
      const std::uint64_t low = states[k] & low_masks[n_bits];
      const std::uint64_t raw = delta & row.raw_mask;
      states[k] = tables.next_states[std::int64_t(states[k] >> n_bits) + row.first];
      if constexpr (Words::word_bits == 64) {
        const unsigned n_low = std::min(row.raw_bits, 32u);
        bits.put(low | (raw & low_masks[n_low]) << n_bits, n_bits + n_low);
        bits.put(raw >> n_low, row.raw_bits - n_low);
      } else {
        pending |= (low | raw << n_bits) << n_pending;
        n_pending += n_bits + row.raw_bits;
      }
    }
    if constexpr (Words::word_bits != 64) bits.put(pending, n_pending);
  }

  int table_log_;
  std::vector<OfKey> of_key_;
  std::vector<Row> rows_;
  std::vector<std::uint16_t> next_states_;
};

}  // namespace deltahub
