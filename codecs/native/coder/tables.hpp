// tANS tables: symbol frequencies, the entries for decoding and the rows for encoding. See Duda,
// "Asymmetric numeral systems", arXiv 1311.2540.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/bit_fields.hpp"
#include "kernels/ans/alphabet.hpp"
#include "kernels/ans/table_entries.hpp"
#include "kernels/kernels.hpp"

namespace deltahub {

// One table: the frequency of each symbol of an alphabet. Their sum is 2^table_log.
using Frequencies = std::vector<std::uint16_t>;

// Calls visit(state, symbol) for every state of a table, in ascending order.
template <class Visit>
void for_each_state(const Frequencies& frequencies, int table_log, Visit&& visit) {
  const unsigned n_states = 1u << table_log;
  const unsigned step = (n_states >> 1) + (n_states >> 3) + 3;
  constexpr std::size_t per_store = 16;
  std::uint16_t by_symbol[(1u << max_table_log) + per_store];
  std::uint16_t* end = by_symbol;
  for (std::size_t symbol = 0; symbol < frequencies.size(); ++symbol) {
    // Writes a whole vector whatever the frequency, because most frequencies are smaller than
    // that.
    for (std::size_t i = 0; i < frequencies[symbol]; i += per_store)
      std::fill_n(end + i, per_store, std::uint16_t(symbol));
    end += frequencies[symbol];
  }
  // The i-th element of by_symbol has the state i * step (modulo n_states), so that the index of a
  // state is the state times the modular inverse of the step. Newton iteration: each turn doubles
  // the correct bits.
  unsigned inverse = step;  // correct in 3 bits, then 6, then 12
  for (int state_bits = 3; state_bits < max_table_log; state_bits *= 2)
    inverse *= 2 - step * inverse;
  for (unsigned state = 0, at = 0; state < n_states; ++state, at = (at + inverse) & (n_states - 1))
    visit(state, by_symbol[at]);
}

// The alphabet as table entries: the fields of each symbol that do not depend on the state.
template <class SymbolAt>
std::vector<Entry> entries_of(int n_symbols, SymbolAt&& symbol_at) {
  std::vector<Entry> symbols;
  symbols.reserve(std::size_t(n_symbols));
  for (int i = 0; i < n_symbols; ++i) symbols.push_back(entry_of(0, symbol_at(i), 0));
  return symbols;
}

// Decoding tables in the layout of the kernels.
class DecodingTables {
 public:
  // Appends the 2^table_log entries of each table; tables begin table_stride entries apart.
  // symbols: the alphabet, from `entries_of`.
  void append(const std::vector<Frequencies>& tables, int table_log,
              const std::vector<Entry>& symbols) {
    std::size_t begin = entries_.size() - entry_padding;
    entries_.resize(entries_.size() + tables.size() * table_stride);
    for (const Frequencies& frequencies : tables) {
      fill(&entries_[begin], frequencies, table_log, symbols);
      begin += table_stride;
    }
  }
  const Entry* entries() const { return entries_.data() + entry_padding; }

 private:
  static void fill(Entry* out, const Frequencies& frequencies, int table_log,
                   const std::vector<Entry>& symbols);

  std::vector<Entry> entries_ = std::vector<Entry>(2 * entry_padding);
};

inline void DecodingTables::fill(Entry* out, const Frequencies& frequencies, int table_log,
                                 const std::vector<Entry>& symbols) {
  // The occurrences of a symbol have ranks from its frequency on. Ranks from the next power of two
  // on read one bit fewer, and their next states begin at zero again. by_rank lists all ranks of
  // the first symbol, then those of the second, and so on.
  Entry by_rank[1u << max_table_log];
  // for each symbol, the index in by_rank of its next occurrence
  std::vector<std::uint16_t> next(frequencies.size());
  unsigned end = 0;
  for (std::size_t symbol = 0; symbol < frequencies.size(); ++symbol) {
    const unsigned frequency = frequencies[symbol], power = std::bit_ceil(frequency + 1);
    next[symbol] = std::uint16_t(end);
    if (frequency == 0) continue;
    const unsigned first_bits = unsigned(table_log) + 1 - unsigned(std::countr_zero(power));
    const auto add = [&](unsigned n, unsigned state_bits, unsigned next_state) {
      Entry entry = symbols[symbol] | entry_of(state_bits, {}, next_state);
      for (unsigned i = 0; i < n; ++i, entry += 1u << state_bits) by_rank[end++] = entry;
    };
    const unsigned n_first = std::min(power - frequency, frequency);
    add(n_first, first_bits, (frequency << first_bits) - (1u << table_log));
    if (n_first < frequency) add(frequency - n_first, first_bits - 1, 0);
  }
  for_each_state(frequencies, table_log, [&](unsigned state, unsigned symbol) {
    out[state] = by_rank[next[symbol]++];
  });
}

// Encoding tables in the layout of the kernels.
class EncodingTables {
 public:
  // Appends a table of n_rows rows. symbol_of(row) is the symbol of a row; if its frequency is 0,
  // the row encodes the escape of the same sign instead.
  template <class SymbolOf, class SymbolAt>
  void append_rows(const Frequencies& frequencies, int table_log, unsigned n_rows,
                   SymbolOf&& symbol_of, SymbolAt&& symbol_at) {
    const std::uint32_t n_states = 1u << table_log;
    const std::size_t begin = next_states_.size() - 2 * next_state_padding;
    next_states_.resize(next_states_.size() + table_stride);
    std::vector<std::uint32_t> start(frequencies.size());
    std::uint32_t end = 0;
    for (std::size_t symbol = 0; symbol < frequencies.size(); ++symbol) {
      start[symbol] = end;
      end += frequencies[symbol];
    }
    const std::size_t first_row = rows_.size();
    rows_.resize(first_row + n_rows);
    packed_rows_.resize(packed_rows_.size() + n_rows);
    for (unsigned row_in_table = 0; row_in_table < n_rows; ++row_in_table) {
      int symbol = symbol_of(row_in_table);
      if (frequencies[std::size_t(symbol)] == 0) symbol = symbol_at(symbol).mant < 0;
      const bool is_missing = frequencies[std::size_t(symbol)] == 0;
      const std::uint32_t frequency = std::max<std::uint32_t>(frequencies[std::size_t(symbol)], 1);
      const auto max_bits =
          unsigned(frequency > 1 ? table_log + 1 - std::bit_width(frequency - 1) : table_log);
      const auto next_offset = std::int32_t(start[std::size_t(symbol)]) - std::int32_t(frequency);
      const std::uint8_t width = symbol_at(symbol).width;
      rows_[first_row + row_in_table] = {
          .add_for_bits = (max_bits << 16) - (frequency << max_bits),
          .next_offset = std::int16_t(std::int32_t(begin) + next_offset),
          .width = width,
          .is_missing = is_missing};
      packed_rows_[first_row + entry_padding + row_in_table] =
          packed_row(max_bits, frequency, next_offset, width, is_missing);
    }
    std::uint16_t* const next_states = &next_states_[next_state_padding + begin];
    for_each_state(frequencies, table_log, [&](unsigned state, unsigned symbol) {
      next_states[start[symbol]++] = std::uint16_t(n_states + state);
    });
  }
  EncodingTablesView tables() const {
    return {rows_.data(), packed_rows_.data() + entry_padding,
            next_states_.data() + next_state_padding};
  }

 private:
  std::vector<EncodingRow> rows_;
  std::vector<std::uint32_t> packed_rows_ = std::vector<std::uint32_t>(2 * entry_padding);
  std::vector<std::uint16_t> next_states_ = std::vector<std::uint16_t>(2 * next_state_padding);
};

// Writes frequencies as a prelude stores them. For each symbol: the bit length of its frequency
// minus the bit length `stride` symbols before, zigzag-coded, in unary; then the frequency without
// its leading bit. It ends when the sum is 2^table_log.
inline void write_frequencies(BitWriter& out, const Frequencies& frequencies, int table_log,
                              int stride) {
  unsigned left = 1u << table_log;
  for (int symbol = 0; left > 0; ++symbol) {
    const unsigned frequency = frequencies[symbol];
    const int length = std::bit_width(frequency);
    const int step = length - (symbol < stride ? 0 : std::bit_width(frequencies[symbol - stride]));
    const int ones = step < 0 ? -2 * step - 1 : 2 * step;
    out.put(low_masks[std::size_t(ones)], ones + 1);  // the ones, and the zero that ends them
    if (length > 1) out.put(frequency, length - 1);   // without its leading bit
    left -= frequency;
  }
}

// False if no encoder writes such a table. Zigzag: 0, -1, +1, -2, +2 ... are 0, 1, 2, 3, 4 ...
inline bool read_frequencies(BitReader& in, Frequencies& frequencies, int n_symbols, int table_log,
                             int stride) {
  frequencies.assign(std::size_t(n_symbols), 0);
  unsigned left = 1u << table_log;
  for (int symbol = 0; left > 0; ++symbol) {
    if (symbol == n_symbols || !in.is_whole()) return false;
    constexpr int max_ones = 2 * (max_table_log + 1);
    const int ones = in.get_ones(max_ones);
    if (ones > max_ones) return false;
    const int step = ones % 2 ? -(ones + 1) / 2 : ones / 2;
    const int length =
        step + (symbol < stride ? 0 : std::bit_width(frequencies[std::size_t(symbol - stride)]));
    if (length < 0 || length > table_log + 1) return false;
    if (length == 0) continue;
    const unsigned frequency = (1u << (length - 1)) + in.get(length - 1);
    if (frequency > left) return false;
    frequencies[std::size_t(symbol)] = std::uint16_t(frequency);
    left -= frequency;
  }
  return in.is_whole();
}

}  // namespace deltahub
