// Decoding of fm_delta blocks: tables from a model, then eight interleaved tANS lanes over one stream.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model.hpp"
#include "words.hpp"

namespace deltahub {

inline constexpr std::size_t n_lanes = 8;

// Reads a stream from its last bit to its first. `position` is the number of bits not yet read.
class BackwardBits {
 public:
  BackwardBits(const std::uint8_t* bytes, std::size_t size) : bytes_(bytes), size_(size) {
    // The highest set bit of the last byte marks the end; it must be there.
    if (size > 0 && bytes[size - 1] != 0)
      position_ = 8 * (size - 1) + std::size_t(std::bit_width(bytes[size - 1])) - 1;
    else
      is_sound_ = false;
  }

  bool is_sound() const { return is_sound_; }
  bool is_finished() const { return is_sound_ && position_ == 0; }
  // Whether `n_bits` can be skipped and 16 bytes be loaded at every position after it.
  bool has_room(std::size_t n_bits) const {
    return position_ >= n_bits && position_ / 8 + 16 <= size_;
  }

  // The n bits before the position become readable by `peek`. Too few of them: no longer sound.
  void skip(unsigned n_bits) {
    if (n_bits > position_) {
      is_sound_ = false;
      position_ = 0;
    } else {
      position_ -= n_bits;
    }
  }
  void skip_unchecked(unsigned n_bits) { position_ -= n_bits; }

  // At least 57 bits from `offset` above the position on; the unchecked one needs `has_room`.
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

 private:
  const std::uint8_t* bytes_;
  std::size_t size_;
  std::size_t position_ = 0;
  bool is_sound_ = true;
};

// One model made ready: immutable, shared by all threads.
template <class Words>
class Decoder {
 public:
  using Word = typename Words::Word;
  using Wide = typename Words::Wide;
  static constexpr bool is_wide = Words::word_bits == 64;

  explicit Decoder(const Model& model) : table_log_(model.table_log) {
    const std::size_t n_states = std::size_t(1) << table_log_;
    entries_.resize(model.contexts.size() * n_states);
    for (std::size_t i = 0; i < model.contexts.size(); ++i) {
      const Context& context = model.contexts[i];
      std::array<decltype(Entry::least), n_symbols> least{};
      std::array<std::uint8_t, n_symbols> raw_bits{};
      for (int symbol = 0; symbol < n_symbols; ++symbol) {
        if (context.frequencies[symbol] == 0) continue;  // it may be out of the words' reach
        least[symbol] = decltype(Entry::least)(least_delta(symbol, context.shift));
        raw_bits[symbol] = std::uint8_t(raw_bits_of(symbol, context.shift, Words::word_bits));
      }
      std::array<std::uint16_t, n_symbols> next = context.frequencies;
      for_each_state(context, table_log_, [&](unsigned state, int symbol) {
        const unsigned rank = next[symbol]++;
        const unsigned n_bits = unsigned(table_log_ + 1 - std::bit_width(rank));
        entries_[i * n_states + state] = {.least = least[symbol],
                                          .next_state = std::uint16_t((rank << n_bits) - n_states),
                                          .state_bits = std::uint8_t(n_bits),
                                          .all_bits = std::uint8_t(n_bits + raw_bits[symbol])};
      });
    }
    table_of_key_.resize(Words::n_keys);
    const auto context_of = contexts_by_key(model, Words::n_keys);
    for (unsigned key = 0; key < Words::n_keys; ++key)
      table_of_key_[key] = std::uint16_t(context_of[key] * n_states);
  }

  // base, out: n words; stream: size bytes that do not overlap `out`. Whatever the stream holds,
  // nothing else is read or written. False: no encoder wrote that stream; `out` is then arbitrary.
  bool decode(const std::uint8_t* stream, std::size_t size, const std::uint8_t* base,
              std::uint8_t* out, std::size_t n) const {
    BackwardBits bits(stream, size);
    const Tables tables{entries_.data(), table_of_key_.data()};
    std::uint32_t states[n_lanes] = {};
    const unsigned log = unsigned(table_log_);
    for (std::size_t lane = 0; lane < std::min(n, n_lanes); ++lane) {
      bits.skip(log);
      states[lane] = std::uint32_t(bits.peek() & low_masks[log]);
    }
    std::size_t i = 0;
    for (; i + n_lanes <= n && bits.is_sound(); i += n_lanes) {
      if (bits.has_room(most_round_bits))
        i = decode_fast(tables, bits, states, base, out, i, n) - n_lanes;
      else
        for (std::size_t lane = 0; lane < n_lanes; ++lane)
          decode_words<1, true>(tables, bits, &states[lane], base, out, i + lane);
    }
    for (std::size_t lane = 0; i < n && bits.is_sound(); ++i, ++lane)
      decode_words<1, true>(tables, bits, &states[lane], base, out, i);
    std::uint32_t left = 0;
    for (const std::uint32_t state : states) left |= state;
    return bits.is_finished() && left == 0;
  }

 private:
  struct Entry {
    std::conditional_t<is_wide, std::uint64_t, std::uint32_t> least;
    std::uint16_t next_state;
    std::uint8_t state_bits;
    std::uint8_t all_bits;
  };
  // Plain pointers in registers: a store through `out` could alias the vectors' own.
  struct Tables {
    const Entry* entries;
    const std::uint16_t* of_key;
  };

  static constexpr std::size_t most_round_bits = n_lanes * (max_table_log + Words::word_bits);

  // Rounds of eight words while there is room; returns where it stopped.
  static std::size_t decode_fast(const Tables tables, BackwardBits& shared_bits,
                                 std::uint32_t* shared_states, const std::uint8_t* base,
                                 std::uint8_t* out, std::size_t i, std::size_t n) {
    BackwardBits bits = shared_bits;
    std::uint32_t states[n_lanes];
    std::copy_n(shared_states, n_lanes, states);
    for (; i + n_lanes <= n && bits.has_room(most_round_bits); i += n_lanes) {
#pragma GCC unroll 8
      for (std::size_t lane = 0; lane < n_lanes; lane += together)
        decode_words<together, false>(tables, bits, &states[lane], base, out, i + lane);
    }
    std::copy_n(states, n_lanes, shared_states);
    shared_bits = bits;
    return i;
  }

  // As many words as one window of 57 bits surely holds, and no more than pay.
  static constexpr std::size_t together = Words::word_bits + max_table_log <= 28 ? 2 : 1;

  template <std::size_t COUNT, bool CHECKED>
  static void decode_words(const Tables tables, BackwardBits& bits, std::uint32_t* states,
                           const std::uint8_t* base, std::uint8_t* out, std::size_t i) {
    Wide from[COUNT];
    const Entry* entries[COUNT];
    for (std::size_t k = 0; k < COUNT; ++k) {
      from[k] = load<Word>(base + (i + k) * sizeof(Word));
      entries[k] = &tables.entries[tables.of_key[Words::key(from[k])] + states[k]];
      if constexpr (CHECKED)
        bits.skip(entries[k]->all_bits);
      else
        bits.skip_unchecked(entries[k]->all_bits);
    }
    const auto peek = [&](unsigned offset) {
      return CHECKED ? bits.peek(offset) : bits.peek_unchecked(offset);
    };
    std::uint64_t window = peek(0);
    for (std::size_t k = COUNT; k-- > 0;) {  // the last word's bits are the lowest
      const Entry& entry = *entries[k];
      states[k] = entry.next_state + std::uint32_t(window & low_masks[entry.state_bits]);
      std::uint64_t raw;
      if constexpr (is_wide) {  // up to 64 raw bits: two windows
        raw = (peek(entry.state_bits) & low_masks[32]) | peek(entry.state_bits + 32u) << 32;
        raw &= low_masks[entry.all_bits - entry.state_bits];
      } else {
        raw = (window & low_masks[entry.all_bits]) >> entry.state_bits;
        window >>= entry.all_bits;
      }
      const Wide word = Words::apply(from[k], Wide(entry.least + raw));
      store<Word>(out + (i + k) * sizeof(Word), Word(word));
    }
  }

  int table_log_;
  std::vector<Entry> entries_;
  std::vector<std::uint16_t> table_of_key_;
};

}  // namespace deltahub
