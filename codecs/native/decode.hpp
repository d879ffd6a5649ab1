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

constexpr std::uint64_t low_bits(unsigned n_bits) { return (std::uint64_t(1) << n_bits) - 1; }

// One model made ready: immutable, shared by all threads.
template <class Words>
class Decoder {
 public:
  using Word = typename Words::Word;
  static constexpr bool is_wide = Words::word_bits == 64;

  explicit Decoder(const Model& model) : table_log_(model.table_log) {
    const std::size_t n_states = std::size_t(1) << table_log_;
    entries_.resize(model.contexts.size() * n_states);
    for (std::size_t i = 0; i < model.contexts.size(); ++i) {
      const Context& context = model.contexts[i];
      std::array<std::uint16_t, n_symbols> next = context.frequencies;
      for_each_state(context, table_log_, [&](unsigned state, int symbol) {
        const unsigned rank = next[symbol]++;
        const unsigned n_bits = unsigned(table_log_ + 1 - std::bit_width(rank));
        const unsigned n_raw = raw_bits_of(symbol, context.shift, Words::word_bits);
        entries_[i * n_states + state] = {
            .least = Word(least_delta(symbol, context.shift)),
            .next_state = std::uint16_t((rank << n_bits) - n_states),
            .state_bits = std::uint8_t(n_bits),
            .all_bits = std::uint8_t(n_bits + n_raw)};
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
    std::uint16_t states[n_lanes] = {};
    const unsigned log = unsigned(table_log_);
    for (std::size_t lane = 0; lane < std::min(n, n_lanes); ++lane) {
      bits.skip(log);
      states[lane] = std::uint16_t(bits.peek() & low_bits(log));
    }
    std::size_t i = 0;
    constexpr std::size_t most_bits = n_lanes * (max_table_log + Words::word_bits);
    for (; i + n_lanes <= n && bits.is_sound(); i += n_lanes) {
      if (bits.has_room(most_bits))
        i = decode_fast(bits, states, base, out, i, n) - n_lanes;
      else
        for (std::size_t lane = 0; lane < n_lanes; ++lane)
          decode_word<true>(bits, states[lane], base, out, i + lane);
    }
    for (std::size_t lane = 0; i < n && bits.is_sound(); ++i, ++lane)
      decode_word<true>(bits, states[lane], base, out, i);
    std::uint16_t left = 0;
    for (const std::uint16_t state : states) left |= state;
    return bits.is_finished() && left == 0;
  }

 private:
  struct Entry {
    Word least;
    std::uint16_t next_state;
    std::uint8_t state_bits;
    std::uint8_t all_bits;
  };

  // Rounds of eight words while there is room; returns where it stopped.
  std::size_t decode_fast(BackwardBits& shared_bits, std::uint16_t* shared_states,
                          const std::uint8_t* base, std::uint8_t* out, std::size_t i,
                          std::size_t n) const {
    constexpr std::size_t most_bits = n_lanes * (max_table_log + Words::word_bits);
    BackwardBits bits = shared_bits;
    std::uint16_t states[n_lanes];
    std::copy_n(shared_states, n_lanes, states);
    for (; i + n_lanes <= n && bits.has_room(most_bits); i += n_lanes) {
#pragma GCC unroll 8
      for (std::size_t lane = 0; lane < n_lanes; ++lane)
        decode_word<false>(bits, states[lane], base, out, i + lane);
    }
    std::copy_n(states, n_lanes, shared_states);
    shared_bits = bits;
    return i;
  }

  template <bool CHECKED>
  void decode_word(BackwardBits& bits, std::uint16_t& state, const std::uint8_t* base,
                   std::uint8_t* out, std::size_t i) const {
    const Word from = load<Word>(base + i * sizeof(Word));
    const Entry entry = entries_[table_of_key_[Words::key(from)] + state];
    if constexpr (CHECKED)
      bits.skip(entry.all_bits);
    else
      bits.skip_unchecked(entry.all_bits);
    const auto peek = [&](unsigned offset) {
      return CHECKED ? bits.peek(offset) : bits.peek_unchecked(offset);
    };
    const std::uint64_t window = peek(0);
    state = std::uint16_t(entry.next_state + (window & low_bits(entry.state_bits)));
    const unsigned n_raw = entry.all_bits - entry.state_bits;
    std::uint64_t raw;
    if constexpr (is_wide) {  // up to 64 raw bits: two windows
      raw = (peek(entry.state_bits) & low_bits(32)) | peek(entry.state_bits + 32u) << 32;
      raw &= n_raw == 64 ? ~std::uint64_t(0) : low_bits(n_raw);
    } else {
      raw = window >> entry.state_bits & low_bits(n_raw);
    }
    store<Word>(out + i * sizeof(Word), Words::apply(from, Word(entry.least + raw)));
  }

  int table_log_;
  std::vector<Entry> entries_;
  std::vector<std::uint16_t> table_of_key_;
};

}  // namespace deltahub
