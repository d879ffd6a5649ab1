// The model of a frame: contexts and their frequencies, as the prelude stores them.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "symbols.hpp"

namespace deltahub {

inline constexpr int max_contexts = 16;
inline constexpr int min_table_log = 7;   // a table has room for every symbol
inline constexpr int max_table_log = 11;  // 16 contexts of 2^11 states stay inside a level-2 cache
inline constexpr int shift_field_bits = 6;
inline constexpr int length_field_bits = 4;

struct Context {
  unsigned first_key = 0;  // the context holds the keys from here to the next context's first
  unsigned shift = 0;      // low bits of a delta that are always raw
  std::array<std::uint16_t, n_symbols> frequencies{};
};

struct Model {
  int table_log = max_table_log;
  std::vector<Context> contexts;
};

class BitWriter {
 public:
  void put(unsigned value, int n_bits) {
    for (int i = 0; i < n_bits; ++i, ++position_) {
      if (position_ % 8 == 0) bytes_.push_back(0);
      bytes_.back() |= std::uint8_t((value >> i & 1) << position_ % 8);
    }
  }
  std::vector<std::uint8_t> take() { return std::move(bytes_); }

 private:
  std::vector<std::uint8_t> bytes_;
  std::size_t position_ = 0;
};

// Reads least significant bits first. Past the end it reads zeros and is no longer `is_whole`.
class BitReader {
 public:
  BitReader(const std::uint8_t* bytes, std::size_t size) : bytes_(bytes), n_bits_(8 * size) {}

  unsigned get(int n_bits) {
    unsigned value = 0;
    for (int i = 0; i < n_bits; ++i, ++position_)
      if (position_ < n_bits_)
        value |= unsigned(bytes_[position_ / 8] >> position_ % 8 & 1) << i;
    return value;
  }
  bool is_whole() const { return position_ <= n_bits_; }
  // Nothing is left but the zero bits that fill the last byte.
  bool is_finished() {
    return is_whole() && n_bits_ - position_ < 8 && get(int(n_bits_ - position_)) == 0;
  }

 private:
  const std::uint8_t* bytes_;
  std::size_t n_bits_;
  std::size_t position_ = 0;
};

inline std::vector<std::uint8_t> write_prelude(const Model& model, int key_bits) {
  BitWriter out;
  out.put(unsigned(model.table_log), 4);
  out.put(unsigned(model.contexts.size() - 1), 4);
  for (std::size_t i = 0; i < model.contexts.size(); ++i) {
    const Context& context = model.contexts[i];
    if (i > 0) out.put(context.first_key, key_bits);
    out.put(context.shift, shift_field_bits);
    unsigned left = 1u << model.table_log;
    for (int symbol = 0; left > 0; ++symbol) {
      const unsigned frequency = context.frequencies[symbol];
      const int length = std::bit_width(frequency);
      out.put(unsigned(length), length_field_bits);
      if (length > 1) out.put(frequency - (1u << (length - 1)), length - 1);
      left -= frequency;
    }
  }
  return out.take();
}

// The model, or nothing where the bytes are not exactly what `write_prelude` writes for some model.
inline std::optional<Model> parse_prelude(const std::uint8_t* bytes, std::size_t size, int key_bits,
                                          int word_bits) {
  BitReader in(bytes, size);
  Model model;
  model.table_log = int(in.get(4));
  if (model.table_log < min_table_log || model.table_log > max_table_log) return {};
  model.contexts.resize(in.get(4) + 1);
  for (std::size_t i = 0; i < model.contexts.size(); ++i) {
    Context& context = model.contexts[i];
    if (i > 0) {
      context.first_key = in.get(key_bits);
      if (context.first_key <= model.contexts[i - 1].first_key) return {};
    }
    context.shift = in.get(shift_field_bits);
    if (context.shift >= unsigned(word_bits)) return {};
    unsigned left = 1u << model.table_log;
    for (int symbol = 0; left > 0; ++symbol) {
      if (symbol == n_symbols) return {};
      const int length = int(in.get(length_field_bits));
      if (length > max_table_log + 1) return {};
      if (length == 0) continue;
      const unsigned frequency = (1u << (length - 1)) + in.get(length - 1);
      if (frequency > left || !is_reachable(symbol, context.shift, word_bits)) return {};
      context.frequencies[symbol] = std::uint16_t(frequency);
      left -= frequency;
    }
    if (context.frequencies[0] == 0 || !in.is_whole()) return {};
  }
  if (!in.is_finished()) return {};
  return model;
}

// Calls visit(state, symbol) for every state of a table, in rising order.
template <class Visit>
void for_each_state(const Context& context, int table_log, Visit&& visit) {
  const unsigned n_states = 1u << table_log;
  const unsigned step = (n_states >> 1) + (n_states >> 3) + 3;
  std::array<std::uint8_t, 1u << max_table_log> symbol_of_state;
  unsigned at = 0;
  for (int symbol = 0; symbol < n_symbols; ++symbol)
    for (unsigned i = 0; i < context.frequencies[symbol]; ++i, at = (at + step) & (n_states - 1))
      symbol_of_state[at] = std::uint8_t(symbol);
  for (unsigned state = 0; state < n_states; ++state) visit(state, symbol_of_state[state]);
}

// context_of[key]: the number of the context that holds the key.
inline std::vector<std::uint8_t> contexts_by_key(const Model& model, unsigned n_keys) {
  std::vector<std::uint8_t> context_of(n_keys);
  std::uint8_t context = 0;
  for (unsigned key = 0; key < n_keys; ++key) {
    while (context + 1u < model.contexts.size() && model.contexts[context + 1].first_key <= key)
      ++context;
    context_of[key] = context;
  }
  return context_of;
}

}  // namespace deltahub
