// Plans a neuzip_lossless frame: the number of mantissa bits coded with the exponent, and the
// table.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "coder/histograms.hpp"
#include "neuzip/neuzip.hpp"

namespace deltahub {

struct FloatPlan {
  FloatModel model;
  std::vector<std::uint8_t> prelude;
  std::uint64_t estimated_bytes = 0;  // of prelude and blocks
  std::uint64_t lower_bound = 0;      // lower bound of all blocks' bytes, for any block layout
};

// At most this many mantissa bits are coded. A third bit would save 1/30 of what two bits save, and
// double the number of symbols.
template <class Words>
inline constexpr int max_coded_mantissa_bits =
    std::min({2, Words::mantissa_bits, max_leading_bits - Words::exponent_bits});

// Makes the table for these counts of leading bits. If `is_pruned`, symbols are left out whose
// share of the table saves more bits when the other symbols have it than their escapes cost.
// Nothing if a table is too small for the symbols, or if `is_pruned` leaves out none.
template <class Words>
std::optional<FloatPlan> plan_table(FloatModel model, const std::vector<std::uint64_t>& counts,
                                    std::uint64_t n, bool is_pruned) {
  const auto is_used = [](std::uint64_t count) { return count > 0; };
  const auto begin = std::ranges::find_if(counts, is_used);
  const auto end = std::find_if(counts.rbegin(), counts.rend(), is_used).base();
  // Escapes, then only the range of values that occur, because most values never do.
  std::vector<std::uint64_t> kept(n_escapes);
  kept.insert(kept.end(), begin, end);
  const auto first = std::size_t(begin - counts.begin());
  const int raw = float_raw_bits<Words>(model), escaped = Words::word_bits - 1;
  const auto n_used = [&] { return kept.size() - std::size_t(std::ranges::count(kept, 0u)); };
  if (is_pruned) {
    bool has_pruned = false;
    for (std::size_t i = n_escapes; i < kept.size(); ++i) {
      if (kept[i] == 0 || (2 * kept[i] * unsigned(escaped - raw)) << model.table_log >= 3 * n)
        continue;
      const bool is_negative = 2 * (first + i - n_escapes) >= counts.size();
      kept[is_negative] += kept[i];
      kept[i] = 0;
      has_pruned = true;
    }
    if (!has_pruned) return {};
  }
  while (n_used() > std::size_t(1) << model.table_log)
    if (++model.table_log > max_table_log) return {};
  const Frequencies frequencies = normalized(kept, model.table_log, false);
  model.table.assign(counts.size() + n_escapes, 0);
  std::copy_n(frequencies.begin(), n_escapes, model.table.begin());
  std::ranges::copy(frequencies.begin() + n_escapes, frequencies.end(),
                    model.table.begin() + n_escapes + std::ptrdiff_t(first));
  std::uint64_t state_bits = 0;  // in units of 2^-16 bits
  std::uint64_t bits = 0, least_bits = 0;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (kept[i] == 0) continue;
    const int n_raw = i < n_escapes ? escaped : raw;
    state_bits += kept[i] * ((std::uint64_t(model.table_log) << 16) - log2_fixed(frequencies[i]));
    bits += kept[i] * std::uint64_t(n_raw);
    // The least number of bits that the coder writes for the symbol's state. A word of a raw block
    // takes word_bits bits, so that the smaller of both forms bounds the word in any block.
    const int from_state = model.table_log - std::bit_width(frequencies[i] - 1u);
    least_bits += kept[i] * std::uint64_t(std::min(from_state + n_raw, Words::word_bits));
  }
  FloatPlan plan{std::move(model), {}, 0, (least_bits + 7) / 8};
  plan.prelude = write_float_prelude(plan.model);
  plan.estimated_bytes = plan.prelude.size() + ((state_bits >> 16) + bits + 7) / 8;
  return plan;
}

// Counts the values of the leading bits, which follow the sign. Adds to `all_bits` the bits that
// are set in any word.
template <class Words>
[[gnu::noinline]] std::vector<std::uint64_t> count_leading_bits(const std::uint8_t* words,
                                                                std::size_t n,
                                                                typename Words::Word& all_bits) {
  using Word = typename Words::Word;
  constexpr int n_low = Words::mantissa_bits - max_coded_mantissa_bits<Words>;
  constexpr std::size_t n_values = std::size_t(1)
                                   << (Words::exponent_bits + max_coded_mantissa_bits<Words>);
  // Adding to a count that was stored just before stalls, so that the words of eight bytes use
  // different tables. 32 bits suffice because a frame has fewer than 2^32 words.
  constexpr std::size_t n_tables = 8 / sizeof(Word);
  std::vector<std::uint32_t> tables(n_tables * n_values);
  std::uint32_t* const counts = tables.data();
  std::uint64_t or_of_all = 0;
  std::size_t i = 0;
  for (; i + n_tables <= n; i += n_tables) {
    const auto eight_bytes = load<std::uint64_t>(words + i * sizeof(Word));
    or_of_all |= eight_bytes;
    for (std::size_t table = 0; table < n_tables; ++table) {
      const auto word = Word(eight_bytes >> Words::word_bits * int(table));
      ++counts[table * n_values + (std::size_t(word >> n_low) & (n_values - 1))];
    }
  }
  for (; i < n; ++i) {
    const Word word = load<Word>(words + i * sizeof(Word));
    or_of_all |= word;
    ++counts[std::size_t(word >> n_low) & (n_values - 1)];
  }
  for (std::size_t table = 0; table < n_tables; ++table)
    all_bits |= Word(or_of_all >> Words::word_bits * int(table));
  std::vector<std::uint64_t> sums(n_values);
  for (std::size_t table = 0; table < n_tables; ++table)
    for (std::size_t value = 0; value < n_values; ++value)
      sums[value] += counts[table * n_values + value];
  return sums;
}

// The smallest plan, from exact counts of all words. Nothing if no table holds the exponents that
// occur.
template <class Words>
std::optional<FloatPlan> plan_floats(const std::uint8_t* words, std::size_t n) {
  typename Words::Word all_bits = 0;
  std::vector<std::uint64_t> counts = count_leading_bits<Words>(words, n, all_bits);
  FloatModel model;
  model.zero_bits = std::min(std::countr_zero(all_bits), Words::mantissa_bits);
  model.table_log = std::clamp(int(std::bit_width(n)) - 3, min_table_log, max_table_log);
  std::optional<FloatPlan> best;
  for (model.n_leading = max_coded_mantissa_bits<Words>; model.n_leading >= 0; --model.n_leading) {
    if (model.zero_bits + model.n_leading <= Words::mantissa_bits)
      for (const bool is_pruned : {false, true}) {
        auto plan = plan_table<Words>(model, counts, n, is_pruned);
        if (plan && (!best || plan->estimated_bytes <= best->estimated_bytes))
          best = std::move(plan);
      }
    if (model.n_leading == 0) break;
    for (std::size_t i = 0; i < counts.size() / 2; ++i)
      counts[i] = counts[2 * i] + counts[2 * i + 1];
    counts.resize(counts.size() / 2);
  }
  return best;
}

}  // namespace deltahub
