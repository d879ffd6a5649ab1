// Counting for the planner: magnitudes in fine bins, symbols at a shift, and what they would cost.
//
// Whole numbers only, so that every machine plans the same.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "alphabet.hpp"
#include "tables.hpp"

namespace deltahub {

// log2 of x in units of 2^-16, x >= 1: 8 bits of the mantissa from a table, the rest linearly.
inline constexpr std::array<std::uint32_t, 257> log2_table = [] {
  std::array<std::uint32_t, 257> table{};
  for (std::uint32_t i = 0; i <= 256; ++i) {
    std::uint64_t y = std::uint64_t(256 + i) << 22;  // 1 <= y / 2^30 <= 2, squared bit by bit
    std::uint32_t log = 0;
    for (int bit = 0; bit < 17; ++bit) {
      const std::uint64_t over = y >> 31;
      log = log * 2 + std::uint32_t(over);
      y >>= over;
      y = y * y >> 30;
    }
    table[i] = log;
  }
  return table;
}();

inline std::uint64_t log2_fixed(std::uint64_t x) {
  const int k = std::bit_width(x) - 1;
  const std::uint64_t fraction = k >= 16 ? x >> (k - 16) & 0xffff : (x << (16 - k)) & 0xffff;
  const std::uint64_t low = log2_table[fraction >> 8], high = log2_table[(fraction >> 8) + 1];
  return (std::uint64_t(k) << 16) + low + ((high - low) * (fraction & 0xff) >> 8);
}

// Bins of magnitudes: 0..31 one by one, then sixteen an octave: fine enough to hold the cells of
// every shift. The sign is the lowest bit of a bin.
template <class Wide>
inline unsigned bin_of(Wide magnitude, unsigned negative) {
  const unsigned step = unsigned(std::bit_width(Wide(magnitude | 16))) - 5;
  return 2 * (16 * step + unsigned(magnitude >> step)) + negative;
}
inline std::uint64_t bin_start(unsigned bin) {
  bin /= 2;
  return bin < 32 ? bin : std::uint64_t(16 + bin % 16) << (bin / 16 - 1);
}
constexpr unsigned n_bins(int number_bits) { return unsigned(number_bits - 3) * 32; }

// One count a bin; bins beyond the end are empty.
using Histogram = std::vector<std::uint32_t>;
using Bins = std::span<const std::uint32_t>;

inline std::uint64_t total_of(Bins histogram) {
  return std::accumulate(histogram.begin(), histogram.end(), std::uint64_t(0));
}

using Counts = std::array<std::uint64_t, n_delta_symbols>;

inline void add_counts(Counts& counts, Bins histogram, unsigned shift) {
  for (unsigned bin = 0; bin < histogram.size(); ++bin)
    if (histogram[bin])
      counts[std::size_t(symbol_of_place(2 * cell_of(bin_start(bin) >> shift) + (bin & 1)))] +=
          histogram[bin];
}

// The shift that puts three quarters of the numbers into the lower half of the linear cells.
inline unsigned shift_for(Bins histogram) {
  const std::uint64_t total = total_of(histogram);
  std::uint64_t below = 0;
  unsigned bin = 0;
  while (4 * below < 3 * total) below += histogram[bin++];
  const unsigned width = bin > 0 ? unsigned(std::bit_width(bin_start(bin - 1))) : 0;
  return width > 3 ? width - 3 : 0;
}

// Bits of the symbols' states under a table of their own, in units of 2^-16.
inline std::uint64_t entropy_bits(const Counts& counts) {
  std::uint64_t bits = 0, total = 0;
  for (const std::uint64_t count : counts) total += count;
  if (total == 0) return 0;
  const std::uint64_t log_total = log2_fixed(total);
  for (const std::uint64_t count : counts)
    if (count) bits += count * (log_total - log2_fixed(count));
  return bits;
}

// Raw digits of the symbols at a shift.
inline std::uint64_t raw_bits(const Counts& counts, unsigned shift, int number_bits) {
  std::uint64_t bits = 0;
  for (int symbol = 0; symbol < n_delta_symbols; ++symbol)
    bits += counts[std::size_t(symbol)] *
            raw_digits(delta_symbol(symbol).width, shift, unsigned(number_bits));
  return bits;
}

// About how many bits the numbers take with a table of their own. What fits a sample best fits the
// rest less well, the more symbols the sooner: each one counts for 1.4 bits more.
inline std::uint64_t bits_alone(Bins histogram, int number_bits) {
  Counts counts{};
  const unsigned shift = total_of(histogram) ? shift_for(histogram) : 0;
  add_counts(counts, histogram, shift);
  const auto n_symbols = std::uint64_t(
      std::ranges::count_if(counts, [](std::uint64_t count) { return count > 0; }));
  return (entropy_bits(counts) >> 16) + 7 * n_symbols / 5 + raw_bits(counts, shift, number_bits);
}

// About what a table costs in a prelude, in bits.
inline std::uint64_t table_bits(const Counts& counts, int table_log) {
  std::uint64_t bits = 0;
  for (const std::uint64_t count : counts) bits += count ? unsigned(table_log) / 2 : 1;
  return bits;
}

// Counts scaled to a sum of 2^table_log, each at least 1 where the count is, or where it is an
// escape and `has_escapes`.
inline Frequencies normalized(const std::vector<std::uint64_t>& counts, int table_log,
                              bool has_escapes) {
  const std::uint64_t total = std::max<std::uint64_t>(
      std::accumulate(counts.begin(), counts.end(), std::uint64_t(0)), 1);
  std::vector<std::int64_t> scaled(counts.size());
  std::int64_t left = std::int64_t(1) << table_log;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i])
      scaled[i] = std::int64_t(
          std::max<std::uint64_t>(1, ((counts[i] << table_log) + total / 2) / total));
    if (has_escapes && i < std::size_t(n_escapes)) scaled[i] = std::max<std::int64_t>(scaled[i], 1);
    left -= scaled[i];
  }
  // One step at a time, where it gains most or costs least: count * log2(bigger / smaller).
  for (; left != 0; left += left > 0 ? -1 : 1) {
    int best = -1;
    std::uint64_t best_change = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const std::int64_t smaller = left > 0 ? scaled[i] : scaled[i] - 1;
      if (smaller < 1) continue;
      const std::uint64_t change =
          counts[i] * (log2_fixed(std::uint64_t(smaller) + 1) - log2_fixed(std::uint64_t(smaller)));
      if (best < 0 || (left > 0 ? change > best_change : change < best_change))
        best = int(i), best_change = change;
    }
    if (best < 0) best = 0, scaled[0] = 0;  // nothing was counted: one symbol takes it all
    scaled[std::size_t(best)] += left > 0 ? 1 : -1;
  }
  return Frequencies(scaled.begin(), scaled.end());
}

}  // namespace deltahub
