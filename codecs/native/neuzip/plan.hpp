// What neuzip_lossless codes: how many digits of the mantissa go with the exponent, and the table.
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
  std::uint64_t least_bytes = 0;      // that blocks of these words take, coded or raw, however cut
};

// A third digit would save a thirtieth of what two do, in twice as many symbols.
template <class Words>
inline constexpr int most_tried =
    std::min({2, Words::mantissa_bits, max_leading_bits - Words::exponent_bits});

// The best table for these counts of leading bits; without those symbols, where `is_pruned`, whose
// state is worth more to the others than what their escapes cost. Nothing where it is too small, or
// where no symbol goes.
template <class Words>
std::optional<FloatPlan> plan_table(FloatModel model, const std::vector<std::uint64_t>& counts,
                                    std::uint64_t n, bool is_pruned) {
  const auto is_used = [](std::uint64_t count) { return count > 0; };
  const auto begin = std::ranges::find_if(counts, is_used);
  const auto end = std::find_if(counts.rbegin(), counts.rend(), is_used).base();
  // Escapes, then the used range alone: most leading bits never occur.
  std::vector<std::uint64_t> kept(n_escapes);
  kept.insert(kept.end(), begin, end);
  const auto first = std::size_t(begin - counts.begin());
  const int raw = float_raw_bits<Words>(model), escaped = Words::word_bits - 1;
  const auto n_used = [&] { return kept.size() - std::size_t(std::ranges::count(kept, 0u)); };
  if (is_pruned) {
    bool is_other = false;
    for (std::size_t i = n_escapes; i < kept.size(); ++i) {
      if (kept[i] == 0 || (2 * kept[i] * unsigned(escaped - raw)) << model.table_log >= 3 * n)
        continue;
      const bool is_negative = 2 * (first + i - n_escapes) >= counts.size();
      kept[is_negative] += kept[i];
      kept[i] = 0;
      is_other = true;
    }
    if (!is_other) return {};
  }
  while (n_used() > std::size_t(1) << model.table_log)
    if (++model.table_log > max_table_log) return {};
  const Frequencies frequencies = normalized(kept, model.table_log, false);
  model.table.assign(counts.size() + n_escapes, 0);
  std::copy_n(frequencies.begin(), n_escapes, model.table.begin());
  std::ranges::copy(frequencies.begin() + n_escapes, frequencies.end(),
                    model.table.begin() + n_escapes + std::ptrdiff_t(first));
  std::uint64_t state_bits = 0, bits = 0, least_bits = 0;  // the first in units of 2^-16
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (kept[i] == 0) continue;
    const int digits = i < n_escapes ? escaped : raw;
    state_bits += kept[i] * ((std::uint64_t(model.table_log) << 16) - log2_fixed(frequencies[i]));
    bits += kept[i] * std::uint64_t(digits);
    // A state gives up at least so many digits for the symbol. A block that is raw takes no less for
    // its words than each of them does in the form in which it takes least.
    const int from_state = model.table_log - std::bit_width(frequencies[i] - 1u);
    least_bits += kept[i] * std::uint64_t(std::min(from_state + digits, Words::word_bits));
  }
  FloatPlan plan{std::move(model), {}, 0, (least_bits + 7) / 8};
  plan.prelude = write_float_prelude(plan.model);
  plan.estimated_bytes = plan.prelude.size() + ((state_bits >> 16) + bits + 7) / 8;
  return plan;
}

// How often each value of the first bits behind the sign occurs. `seen` gains the digits of all words.
template <class Words>
[[gnu::noinline]] std::vector<std::uint64_t> counted_leading(const std::uint8_t* words,
                                                             std::size_t n,
                                                             typename Words::Word& seen) {
  using Word = typename Words::Word;
  constexpr int n_low = Words::mantissa_bits - most_tried<Words>;
  constexpr std::size_t n_values = std::size_t(1) << (Words::exponent_bits + most_tried<Words>);
  // A count that has just been stored is slow to load: eight bytes of words take turns. A frame has
  // fewer than 2^32 words.
  constexpr std::size_t n_turns = 8 / sizeof(Word);
  std::vector<std::uint32_t> turns(n_turns * n_values);
  std::uint32_t* const counts = turns.data();
  std::uint64_t all = 0;
  std::size_t i = 0;
  for (; i + n_turns <= n; i += n_turns) {
    const auto some = load<std::uint64_t>(words + i * sizeof(Word));
    all |= some;
    for (std::size_t turn = 0; turn < n_turns; ++turn) {
      const auto word = Word(some >> Words::word_bits * int(turn));
      ++counts[turn * n_values + (std::size_t(word >> n_low) & (n_values - 1))];
    }
  }
  for (; i < n; ++i) {
    const Word word = load<Word>(words + i * sizeof(Word));
    all |= word;
    ++counts[std::size_t(word >> n_low) & (n_values - 1)];
  }
  for (std::size_t turn = 0; turn < n_turns; ++turn)
    seen |= Word(all >> Words::word_bits * int(turn));
  std::vector<std::uint64_t> sums(n_values);
  for (std::size_t turn = 0; turn < n_turns; ++turn)
    for (std::size_t value = 0; value < n_values; ++value)
      sums[value] += counts[turn * n_values + value];
  return sums;
}

// The smallest plan of all words, counted exactly; nothing where they have more exponents than a
// table holds.
template <class Words>
std::optional<FloatPlan> plan_floats(const std::uint8_t* words, std::size_t n) {
  typename Words::Word seen = 0;
  std::vector<std::uint64_t> counts = counted_leading<Words>(words, n, seen);
  FloatModel model;
  model.zero_bits = std::min(std::countr_zero(seen), Words::mantissa_bits);
  model.table_log = std::clamp(int(std::bit_width(n)) - 3, min_table_log, max_table_log);
  std::optional<FloatPlan> best;
  for (model.n_leading = most_tried<Words>; model.n_leading >= 0; --model.n_leading) {
    if (model.zero_bits + model.n_leading <= Words::mantissa_bits)
      for (const bool is_pruned : {false, true}) {
        auto plan = plan_table<Words>(model, counts, n, is_pruned);
        if (plan && (!best || plan->estimated_bytes <= best->estimated_bytes))
          best = std::move(plan);
      }
    if (model.n_leading == 0) break;
    for (std::size_t i = 0; i < counts.size() / 2; ++i) counts[i] = counts[2 * i] + counts[2 * i + 1];
    counts.resize(counts.size() / 2);
  }
  return best;
}

}  // namespace deltahub
