// tANS tables: frequencies of symbols, the entries that decode them, the rows that encode them.
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

// One table: a frequency for each symbol of an alphabet, 2^table_log in all.
using Frequencies = std::vector<std::uint16_t>;

// Calls visit(state, symbol) for every state of a table, in rising order.
template <class Visit>
void for_each_state(const Frequencies& frequencies, int table_log, Visit&& visit) {
  const unsigned n_states = 1u << table_log;
  const unsigned step = (n_states >> 1) + (n_states >> 3) + 3;
  constexpr std::size_t together = 16;
  std::uint16_t by_symbol[(1u << max_table_log) + together];
  std::uint16_t* end = by_symbol;
  for (std::size_t symbol = 0; symbol < frequencies.size(); ++symbol) {
    // Most frequencies are small: as many as a store holds are written whatever is asked for.
    for (std::size_t i = 0; i < frequencies[symbol]; i += together)
      std::fill_n(end + i, together, std::uint16_t(symbol));
    end += frequencies[symbol];
  }
  // The i-th of them has the state i * step; so a state finds its own by the inverse of the step.
  unsigned inverse = step;  // right in 3 digits, then in 6 and in 12
  for (int digits = 3; digits < max_table_log; digits *= 2) inverse *= 2 - step * inverse;
  for (unsigned state = 0, at = 0; state < n_states; ++state, at = (at + inverse) & (n_states - 1))
    visit(state, by_symbol[at]);
}

// An alphabet as entries hold it: the parts of each symbol that no state changes.
template <class SymbolAt>
std::vector<Entry> entries_of(int n_symbols, SymbolAt&& symbol_at) {
  std::vector<Entry> symbols;
  symbols.reserve(std::size_t(n_symbols));
  for (int i = 0; i < n_symbols; ++i) symbols.push_back(entry_of(0, symbol_at(i), 0));
  return symbols;
}

// Tables as kernels read them.
class DecodingTables {
 public:
  // Appends each table's 2^table_log entries, at their stride. symbols: the alphabet, from
  // `entries_of`.
  void append(const std::vector<Frequencies>& tables, int table_log,
              const std::vector<Entry>& symbols) {
    std::size_t begin = entries_.size() - entries_beside;
    entries_.resize(entries_.size() + tables.size() * table_stride);
    for (const Frequencies& frequencies : tables) {
      fill(&entries_[begin], frequencies, table_log, symbols);
      begin += table_stride;
    }
  }
  const Entry* entries() const { return entries_.data() + entries_beside; }

 private:
  static void fill(Entry* out, const Frequencies& frequencies, int table_log,
                   const std::vector<Entry>& symbols);

  std::vector<Entry> entries_ = std::vector<Entry>(2 * entries_beside);
};

inline void DecodingTables::fill(Entry* out, const Frequencies& frequencies, int table_log,
                                 const std::vector<Entry>& symbols) {
  // A symbol's ranks run from its frequency on; from the next power of two on they take one digit
  // less, and their next states begin at zero again. by_rank: first all of the first symbol.
  Entry by_rank[1u << max_table_log];
  std::vector<std::uint16_t> next(frequencies.size());  // of each symbol's, there
  unsigned end = 0;
  for (std::size_t symbol = 0; symbol < frequencies.size(); ++symbol) {
    const unsigned frequency = frequencies[symbol], power = std::bit_ceil(frequency + 1);
    next[symbol] = std::uint16_t(end);
    if (frequency == 0) continue;
    const unsigned first_digits = unsigned(table_log) + 1 - unsigned(std::countr_zero(power));
    const auto add = [&](unsigned n, unsigned digits, unsigned next_state) {
      Entry entry = symbols[symbol] | entry_of(digits, {}, next_state);
      for (unsigned i = 0; i < n; ++i, entry += 1u << digits) by_rank[end++] = entry;
    };
    const unsigned n_first = std::min(power - frequency, frequency);
    add(n_first, first_digits, (frequency << first_digits) - (1u << table_log));
    if (n_first < frequency) add(frequency - n_first, first_digits - 1, 0);
  }
  for_each_state(frequencies, table_log, [&](unsigned state, unsigned symbol) {
    out[state] = by_rank[next[symbol]++];
  });
}

// Tables as kernels write by them.
class TablesToWrite {
 public:
  // Appends a table: a row for each of n_rows places, which stand for symbols; where the table lacks
  // one, for the escape of its sign.
  template <class SymbolOf, class SymbolAt>
  void append_rows(const Frequencies& frequencies, int table_log, unsigned n_rows,
                   SymbolOf&& symbol_of, SymbolAt&& symbol_at) {
    const std::uint32_t n_states = 1u << table_log;
    const std::size_t begin = next_states_.size() - 2 * next_states_beside;
    next_states_.resize(next_states_.size() + table_stride);
    std::vector<std::uint32_t> start(frequencies.size());
    std::uint32_t end = 0;
    for (std::size_t symbol = 0; symbol < frequencies.size(); ++symbol) {
      start[symbol] = end;
      end += frequencies[symbol];
    }
    const std::size_t first_row = rows_.size();
    rows_.resize(first_row + n_rows);
    short_rows_.resize(short_rows_.size() + n_rows);
    for (unsigned place = 0; place < n_rows; ++place) {
      int symbol = symbol_of(place);
      if (frequencies[std::size_t(symbol)] == 0) symbol = symbol_at(symbol).mant < 0;
      const bool is_missing = frequencies[std::size_t(symbol)] == 0;
      const std::uint32_t frequency = std::max<std::uint32_t>(frequencies[std::size_t(symbol)], 1);
      const auto most =
          unsigned(frequency > 1 ? table_log + 1 - std::bit_width(frequency - 1) : table_log);
      const auto first = std::int32_t(start[std::size_t(symbol)]) - std::int32_t(frequency);
      const std::uint8_t width = symbol_at(symbol).width;
      rows_[first_row + place] = {.add_for_digits = (most << 16) - (frequency << most),
                                  .first = std::int16_t(std::int32_t(begin) + first),
                                  .width = width,
                                  .is_missing = is_missing};
      short_rows_[first_row + entries_beside + place] =
          short_row(most, frequency, first, width, is_missing);
    }
    std::uint16_t* const next_states = &next_states_[next_states_beside + begin];
    for_each_state(frequencies, table_log, [&](unsigned state, unsigned symbol) {
      next_states[start[symbol]++] = std::uint16_t(n_states + state);
    });
  }
  EncodingTables tables() const {
    return {rows_.data(), short_rows_.data() + entries_beside,
            next_states_.data() + next_states_beside};
  }

 private:
  std::vector<Row> rows_;
  std::vector<std::uint32_t> short_rows_ = std::vector<std::uint32_t>(2 * entries_beside);
  std::vector<std::uint16_t> next_states_ = std::vector<std::uint16_t>(2 * next_states_beside);
};

// Frequencies as a prelude stores them: each length as a step from the length `stride` symbols
// before, in unary; then the digits below the leading one; until the table is full.
inline void write_frequencies(BitWriter& out, const Frequencies& frequencies, int table_log,
                              int stride) {
  unsigned left = 1u << table_log;
  for (int symbol = 0; left > 0; ++symbol) {
    const unsigned frequency = frequencies[symbol];
    const int length = std::bit_width(frequency);
    const int step = length - (symbol < stride ? 0 : std::bit_width(frequencies[symbol - stride]));
    const int ones = step < 0 ? -2 * step - 1 : 2 * step;
    out.put(low_masks[std::size_t(ones)], ones + 1);  // and a zero
    if (length > 1) out.put(frequency, length - 1);   // without its leading digit
    left -= frequency;
  }
}

// False where no encoder writes such a table. Zigzag: 0, -1, +1, -2, +2 ... are 0, 1, 2, 3, 4 ...
inline bool read_frequencies(BitReader& in, Frequencies& frequencies, int n_symbols, int table_log,
                             int stride) {
  frequencies.assign(std::size_t(n_symbols), 0);
  unsigned left = 1u << table_log;
  for (int symbol = 0; left > 0; ++symbol) {
    if (symbol == n_symbols || !in.is_whole()) return false;
    constexpr int most = 2 * (max_table_log + 1);
    const int ones = in.get_ones(most);
    if (ones > most) return false;
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
