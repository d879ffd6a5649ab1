// Histograms for the planner: magnitudes in fine bins, symbol counts at a shift, and estimates of
// the coded size.
//
// All arithmetic is on integers, so that the plan is the same on every machine.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "coder/tables.hpp"
#include "kernels/ans/alphabet.hpp"
#include "kernels/magnitude_bins.hpp"

namespace deltahub {

// log2(x) in units of 2^-16, for x >= 1: a table for the 8 leading bits of the mantissa, linear
// between its entries.
inline constexpr std::array<std::uint32_t, 257> log2_table = [] {
  std::array<std::uint32_t, 257> table{};
  for (std::uint32_t i = 0; i <= 256; ++i) {
    // 1 <= y / 2^30 <= 2; each squaring gives one bit
    std::uint64_t y = std::uint64_t(256 + i) << 22;
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

constexpr std::uint64_t log2_fixed(std::uint64_t x) {
  const int k = std::bit_width(x) - 1;
  const std::uint64_t fraction = k >= 16 ? x >> (k - 16) & 0xffff : (x << (16 - k)) & 0xffff;
  const std::uint64_t low = log2_table[fraction >> 8], high = log2_table[(fraction >> 8) + 1];
  return (std::uint64_t(k) << 16) + low + ((high - low) * (fraction & 0xff) >> 8);
}

constexpr std::uint64_t bin_start(unsigned bin) {
  bin /= 2;
  return bin < 16 ? bin : std::uint64_t(8 + bin % 8) << (bin / 8 - 1);
}
constexpr unsigned n_bins(int value_bits) { return unsigned(value_bits - 3) * 16; }

// count * log2(count), in units of 2^-16 bits.
inline constexpr auto log_products = [] {
  std::array<std::uint32_t, 4096> table{};  // the last product is below 2^32
  for (std::uint32_t i = 1; i < table.size(); ++i) table[i] = std::uint32_t(i * log2_fixed(i));
  return table;
}();
inline std::uint64_t log_product(std::uint64_t count) {
  return count < log_products.size() ? log_products[count] : count * log2_fixed(count);
}

// One count for each bin (see kernels/magnitude_bins.hpp). The number of bins is even; bins beyond
// the end are empty.
using Histogram = std::vector<std::uint32_t>;
using Bins = std::span<const std::uint32_t>;

// A frame has fewer than 2^32 words.
inline std::uint32_t total_of(Bins histogram) {
  return std::accumulate(histogram.begin(), histogram.end(), std::uint32_t(0));
}

// The histogram without empty pairs of bins at its end.
inline Bins trimmed(Bins histogram) {
  constexpr std::size_t bins_per_step = 16;
  const auto is_empty = [&](std::size_t n) {
    std::uint32_t seen = 0;
    for (const std::uint32_t count : histogram.last(n)) seen |= count;
    return seen == 0;
  };
  while (histogram.size() >= bins_per_step && is_empty(bins_per_step))
    histogram = histogram.first(histogram.size() - bins_per_step);
  while (!histogram.empty() && is_empty(2)) histogram = histogram.first(histogram.size() - 2);
  return histogram;
}

using Counts = std::array<std::uint64_t, n_delta_symbols>;

// For each shift, the bin at which each cell begins, sign not counted. The last element is the end
// of the last cell.
inline constexpr auto cell_bins = [] {
  std::array<std::array<std::uint16_t, n_cells + 1>, 64> bins{};
  for (unsigned shift = 0; shift < bins.size(); ++shift) {
    for (int cell = 0; cell <= n_cells; ++cell) {
      const std::uint64_t start = std::uint64_t(cell_mant(cell)) << cell_width(cell);
      const bool is_beyond = unsigned(std::bit_width(start)) + shift > 63;
      bins[shift][std::size_t(cell)] =
          std::uint16_t(is_beyond ? n_bins(64) / 2 : bin_of(start << shift, 0) / 2);
    }
  }
  return bins;
}();

// The bins of a histogram that stores all of them, as pairs of one bin for each sign.
struct AllBins {
  std::size_t n_pairs;
  std::size_t end() const { return n_pairs; }
  std::size_t before(std::size_t pair) const { return pair; }
};

// Cumulative counts of a nonempty histogram: how many values lie below each magnitude, by sign.
template <class BinIndex = AllBins>
class CumulativeHistogram {
 public:
  // bin_index: end() is one past the last pair of bins; before(pair) is how many stored pairs
  // precede a pair.
  CumulativeHistogram(Bins histogram, const BinIndex& bin_index)
      : bin_index_(bin_index), end_(bin_index.end()) {
    std::uint32_t above_zero = 0, below_zero = 0;
    std::size_t m = 0;
    for (; m < histogram.size() / 2; ++m) {
      below_[m] = {above_zero, below_zero};
      above_zero += histogram[2 * m], below_zero += histogram[2 * m + 1];
    }
    below_[m] = {above_zero, below_zero};
  }
  explicit CumulativeHistogram(Bins histogram)
      : CumulativeHistogram(histogram, {histogram.size() / 2}) {}
  std::uint64_t total() const { return before(end_); }

  // The shift at which three quarters of the values fall into the lower half of the linear cells.
  unsigned shift() const {
    // fewer than 3/4 of the values lie below `low`, at least 3/4 below `high`
    std::size_t low = 0, high = end_;
    while (high - low > 1) {
      const std::size_t middle = (low + high) / 2;
      (4 * before(middle) < 3 * total() ? low : high) = middle;
    }
    const auto width = unsigned(std::bit_width(bin_start(unsigned(2 * low))));
    return width > 3 ? width - 3 : 0;
  }

  // Calls visit(symbol, width, count of values from zero on, count below zero) for each pair of
  // symbols up to the end of the histogram, and then for the escapes.
  template <class Visit>
  void for_each_pair(unsigned shift, Visit&& visit) const {
    std::size_t at = 0;
    Below before{};
    for (int cell = 0; cell < n_cells && at < end_; ++cell) {
      at = std::min<std::size_t>(cell_bins[shift][std::size_t(cell) + 1], end_);
      const Below here = below(at);
      visit(n_escapes + 2 * cell, cell_width(cell), here[0] - before[0], here[1] - before[1]);
      before = here;
    }
    const Below all = below(end_);
    visit(0, unsigned(escape_width), all[0] - before[0], all[1] - before[1]);
  }
  Counts symbols(unsigned shift) const {
    Counts counts{};
    for_each_pair(shift, [&](int symbol, unsigned, std::uint32_t above, std::uint32_t below) {
      counts[std::size_t(symbol)] = above, counts[std::size_t(symbol) + 1] = below;
    });
    return counts;
  }

 private:
  using Below = std::array<std::uint32_t, 2>;
  const Below& below(std::size_t m) const { return below_[bin_index_.before(m)]; }
  std::uint64_t before(std::size_t m) const { return std::uint64_t(below(m)[0]) + below(m)[1]; }

  BinIndex bin_index_;
  std::size_t end_;
  std::array<Below, n_bins(64) / 2 + 1> below_;  // filled only as far as the histogram has bins
};

// The number of raw bits at a shift.
inline std::uint64_t raw_bits(const Counts& counts, unsigned shift, int value_bits) {
  std::uint64_t bits = 0;
  for (int symbol = 0; symbol < n_delta_symbols; ++symbol)
    bits += counts[std::size_t(symbol)] *
            raw_bit_count(delta_symbol(symbol).width, shift, unsigned(value_bits));
  return bits;
}

// Estimate, in bits, of the values coded with a table of their own. Each used symbol adds 1.4
// bits, because a table fitted to a sample fits the other values less well, the more so the more
// symbols it has.
template <class BinIndex>
std::uint64_t bits_with_own_table(const CumulativeHistogram<BinIndex>& tally, int value_bits) {
  if (tally.total() == 0) return 0;
  const unsigned shift = tally.shift();
  std::uint64_t own = 0, n_symbols = 0, raw = 0;
  tally.for_each_pair(shift, [&](int, unsigned width, std::uint32_t above, std::uint32_t below) {
    own += log_product(above) + log_product(below);
    n_symbols += std::uint64_t(above > 0) + (below > 0);
    raw += (std::uint64_t(above) + below) * raw_bit_count(width, shift, unsigned(value_bits));
  });
  return ((log_product(tally.total()) - own) >> 16) + 7 * n_symbols / 5 + raw;
}

inline std::uint64_t bits_with_own_table(Bins histogram, int value_bits) {
  return bits_with_own_table(CumulativeHistogram(histogram), value_bits);
}

// Estimate, in bits, of a table in a prelude.
constexpr std::uint64_t table_bits(std::uint64_t n_used, std::uint64_t n_unused, int table_log) {
  return n_used * (unsigned(table_log) / 2) + n_unused;
}

// Counts scaled to a sum of 2^table_log. A frequency is at least 1 if its count is not 0, and for
// escapes if `has_escapes`.
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
  if (left == 0) return Frequencies(scaled.begin(), scaled.end());
  // Changes one frequency by 1 at a time: the one that gains most or costs least, which is count *
  // log2(larger / smaller).
  const bool is_growing = left > 0;
  struct Step {
    std::size_t symbol;
    std::uint64_t change;
  };
  const auto change_of = [&](std::size_t symbol) {
    const auto smaller = std::uint64_t(is_growing ? scaled[symbol] : scaled[symbol] - 1);
    return counts[symbol] * (log2_fixed(smaller + 1) - log2_fixed(smaller));
  };
  std::vector<Step> steps;
  for (std::size_t i = 0; i < counts.size(); ++i)
    if (scaled[i] > (is_growing ? 0 : 1)) steps.push_back({i, change_of(i)});
  for (; left != 0; left += is_growing ? -1 : 1) {
    if (steps.empty()) {  // all counts are 0: one symbol gets all states
      scaled[0] = 0;
      steps.push_back({0, 0});
    }
    const auto best = is_growing
                          ? std::ranges::max_element(steps, {}, &Step::change)
                          : std::ranges::min_element(steps, {}, &Step::change);
    std::int64_t& frequency = scaled[best->symbol];
    frequency += is_growing ? 1 : -1;
    if (is_growing || frequency > 1)
      best->change = change_of(best->symbol);
    else
      steps.erase(best);
  }
  return Frequencies(scaled.begin(), scaled.end());
}

}  // namespace deltahub
