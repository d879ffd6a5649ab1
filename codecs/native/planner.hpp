// Planning: from a sample of a frame's deltas to the model that codes them in few bits.
//
// Everything is integer arithmetic, so that every machine and the NumPy reference choose the same.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "model.hpp"
#include "words.hpp"

namespace deltahub {

inline constexpr std::size_t sample_run = 64;  // words side by side
inline constexpr std::size_t sample_least = std::size_t(1) << 17;
inline constexpr std::size_t max_groups = 20;  // of keys, before they are merged into contexts

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
  const unsigned step = unsigned(std::bit_width(magnitude | 16)) - 5;
  return 2 * (16 * step + unsigned(magnitude >> step)) + negative;
}
inline std::uint64_t bin_start(unsigned bin) {
  bin /= 2;
  return bin < 32 ? bin : std::uint64_t(16 + bin % 16) << (bin / 16 - 1);
}
constexpr unsigned n_bins(int word_bits) { return unsigned(word_bits - 3) * 32; }

struct Histogram {
  unsigned first_key = 0;
  std::uint64_t total = 0;
  std::vector<std::uint32_t> bins;  // up to the last that is not zero
};

// How a group of keys would be coded, and what that costs.
struct Coding {
  unsigned shift = 0;
  std::uint64_t bits = 0;
  std::array<std::uint64_t, n_symbols> counts{};
};

// The positions of the sample's runs: one at a hashed place in each of `n_runs` equal strata.
struct Sample {
  std::size_t n = 0, n_runs = 0, n_strata = 0;

  explicit Sample(std::size_t n_words) : n(n_words), n_runs(n_words / sample_run) {
    const std::size_t wanted = std::max(sample_least, n_words / 32) / sample_run;
    n_strata = n_runs > wanted ? wanted : 0;
  }
  bool is_whole() const { return n_strata == 0; }
  std::size_t size() const { return is_whole() ? n : n_strata * sample_run; }
  std::size_t run_start(std::size_t stratum) const {
    const std::uint64_t jitter = std::uint32_t(stratum * 2654435761u) >> 16;
    return ((std::uint64_t(stratum) << 16 | jitter) * n_runs / n_strata >> 16) * sample_run;
  }
};

template <class Words>
std::vector<Histogram> histograms_by_key(const Sample& sample, const std::uint8_t* source,
                                         const std::uint8_t* base) {
  using Word = typename Words::Word;
  using Wide = typename Words::Wide;
  std::vector<std::vector<std::uint32_t>> bins_of_key(Words::n_keys);
  std::vector<std::uint32_t*> bins(Words::n_keys);
  const auto count = [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const Wide from = load<Word>(base + i * sizeof(Word));
      const Wide delta = Words::delta(load<Word>(source + i * sizeof(Word)), from);
      const Wide negative = sign_mask(delta);
      const unsigned key = Words::key(from);
      if (bins[key] == nullptr) {
        bins_of_key[key].resize(n_bins(Words::word_bits));
        bins[key] = bins_of_key[key].data();
      }
      ++bins[key][bin_of(delta ^ negative, unsigned(negative & 1))];
    }
  };
  if (sample.is_whole()) {
    count(0, sample.n);
  } else {
    for (std::size_t stratum = 0; stratum < sample.n_strata; ++stratum) {
      const std::size_t start = sample.run_start(stratum);
      count(start, start + sample_run);
    }
  }
  std::vector<Histogram> groups;
  for (unsigned key = 0; key < Words::n_keys; ++key) {
    if (bins[key] == nullptr) continue;
    auto& of_key = bins_of_key[key];
    while (of_key.back() == 0) of_key.pop_back();
    const std::uint64_t total = std::accumulate(of_key.begin(), of_key.end(), std::uint64_t(0));
    groups.push_back({.first_key = key, .total = total, .bins = std::move(of_key)});
  }
  return groups;
}

// The coding with one shift. scale: words of the frame for each one of the sample.
inline Coding coding_with(const Histogram& histogram, unsigned shift, std::uint64_t scale,
                          int table_log, int word_bits) {
  Coding coding{.shift = shift};
  for (unsigned bin = 0; bin < histogram.bins.size(); ++bin)
    if (histogram.bins[bin])
      coding.counts[symbol_of_place(2 * cell_of(bin_start(bin) >> shift) + (bin & 1))] +=
          histogram.bins[bin];
  std::uint64_t bits = 0, table_bits = 16;
  const std::uint64_t log_total = log2_fixed(histogram.total);
  int last = 0;
  for (int symbol = 0; symbol < n_symbols; ++symbol) {
    const std::uint64_t count = coding.counts[symbol];
    if (count == 0) continue;
    const std::uint64_t raw = std::uint64_t(raw_bits_of(symbol, shift, word_bits)) << 16;
    bits += count * (log_total - log2_fixed(count) + raw);
    table_bits += unsigned(table_log) / 2;
    last = symbol;
  }
  table_bits += unsigned(last + 1) * length_field_bits;
  coding.bits = (bits >> 16) * scale + table_bits;
  return coding;
}

// The shifts worth a try: around the one that puts three quarters of the deltas in linear cells,
// and far below it, for sizes that differ much are better held by octaves.
struct Shifts {
  unsigned first, last;
};
inline Shifts shifts_for(const Histogram& histogram) {
  std::uint64_t below = 0;
  unsigned bin = 0;
  while (4 * below < 3 * histogram.total) below += histogram.bins[bin++];
  const unsigned width = unsigned(std::bit_width(bin_start(bin - 1)));
  return {.first = width > 12 ? width - 12 : 0, .last = width > 2 ? width - 2 : 0};
}

inline Histogram merged(const Histogram& a, const Histogram& b) {
  Histogram both = a;
  both.total += b.total;
  both.bins.resize(std::max(a.bins.size(), b.bins.size()));
  for (std::size_t i = 0; i < b.bins.size(); ++i) both.bins[i] += b.bins[i];
  return both;
}

// Neighbours are merged as long as there are too many contexts or a merge saves bits: always the
// pair that costs least.
inline std::vector<Coding> merge_groups(std::vector<Histogram>& groups, std::uint64_t scale,
                                        int table_log, int word_bits) {
  while (groups.size() > max_groups) {  // keys of little use first
    std::size_t thinnest = 0;
    for (std::size_t i = 1; i + 1 < groups.size(); ++i)
      if (groups[i].total + groups[i + 1].total <
          groups[thinnest].total + groups[thinnest + 1].total)
        thinnest = i;
    groups[thinnest] = merged(groups[thinnest], groups[thinnest + 1]);
    groups.erase(groups.begin() + std::ptrdiff_t(thinnest) + 1);
  }
  const auto code = [&](const Histogram& histogram, Shifts shifts) {
    Coding best{.bits = std::numeric_limits<std::uint64_t>::max()};
    for (unsigned shift = shifts.first; shift <= shifts.last; ++shift) {
      const Coding coding = coding_with(histogram, shift, scale, table_log, word_bits);
      if (coding.bits < best.bits) best = coding;
    }
    return best;
  };
  std::vector<Coding> codings, pairs;  // pairs[i]: groups i and i + 1 in one
  const auto code_pair = [&](std::size_t i) {
    const auto [least, most] = std::minmax(codings[i].shift, codings[i + 1].shift);
    return code(merged(groups[i], groups[i + 1]), {least, most});
  };
  for (const Histogram& group : groups) codings.push_back(code(group, shifts_for(group)));
  for (std::size_t i = 0; i + 1 < groups.size(); ++i) pairs.push_back(code_pair(i));
  while (groups.size() > 1) {
    std::size_t best = 0;
    auto best_cost = std::numeric_limits<std::int64_t>::max();
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const auto cost = std::int64_t(pairs[i].bits - codings[i].bits - codings[i + 1].bits);
      if (cost < best_cost) best = i, best_cost = cost;
    }
    if (groups.size() <= std::size_t(max_contexts) && best_cost > 0) break;
    const auto at = std::ptrdiff_t(best);
    groups[best] = merged(groups[best], groups[best + 1]);
    groups.erase(groups.begin() + at + 1);
    codings[best] = pairs[best];
    codings.erase(codings.begin() + at + 1);
    pairs.erase(pairs.begin() + at);
    if (best < pairs.size()) pairs[best] = code_pair(best);
    if (best > 0) pairs[best - 1] = code_pair(best - 1);
  }
  return codings;
}

// Counts scaled to a sum of 2^table_log, each at least 1 where the count is; the escape always.
inline std::array<std::uint16_t, n_symbols> normalized(
    const std::array<std::uint64_t, n_symbols>& counts, int table_log) {
  std::uint64_t total = 0;
  for (const std::uint64_t count : counts) total += count;
  std::array<std::int64_t, n_symbols> scaled{};
  std::int64_t left = std::int64_t(1) << table_log;
  for (int i = 0; i < n_symbols; ++i) {
    if (counts[i]) scaled[i] = std::int64_t(std::max<std::uint64_t>(
        1, ((counts[i] << table_log) + total / 2) / total));
    if (i == 0) scaled[i] = std::max<std::int64_t>(scaled[i], 1);
    left -= scaled[i];
  }
  // One step at a time, where it gains most or costs least: count * log2(bigger / smaller).
  for (; left != 0; left += left > 0 ? -1 : 1) {
    int best = -1;
    std::uint64_t best_change = 0;
    for (int i = 0; i < n_symbols; ++i) {
      const std::int64_t smaller = left > 0 ? scaled[i] : scaled[i] - 1;
      if (smaller < 1) continue;
      const std::uint64_t change =
          counts[i] * (log2_fixed(std::uint64_t(smaller) + 1) - log2_fixed(std::uint64_t(smaller)));
      if (best < 0 || (left > 0 ? change > best_change : change < best_change))
        best = i, best_change = change;
    }
    scaled[best] += left > 0 ? 1 : -1;
  }
  std::array<std::uint16_t, n_symbols> frequencies{};
  for (int i = 0; i < n_symbols; ++i) frequencies[i] = std::uint16_t(scaled[i]);
  return frequencies;
}

struct Plan {
  Model model;
  std::uint64_t estimated_bytes = 0;
};

// source, base: n >= 1 words each.
template <class Words>
Plan plan_model(const std::uint8_t* source, const std::uint8_t* base, std::size_t n) {
  const Sample sample(n);
  const std::uint64_t scale = n / sample.size();
  Plan plan;
  plan.model.table_log = std::clamp(int(std::bit_width(n)) - 7, min_table_log, max_table_log);
  auto groups = histograms_by_key<Words>(sample, source, base);
  const auto codings = merge_groups(groups, scale, plan.model.table_log, Words::word_bits);
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < codings.size(); ++i) {
    bits += codings[i].bits;
    plan.model.contexts.push_back({.first_key = i == 0 ? 0 : groups[i].first_key,
                                   .shift = codings[i].shift,
                                   .frequencies = normalized(codings[i].counts,
                                                             plan.model.table_log)});
  }
  plan.estimated_bytes = (bits + 7) / 8;
  return plan;
}

}  // namespace deltahub
