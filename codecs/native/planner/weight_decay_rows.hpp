// Weight-decay rows: embeddings of tokens that never occurred in fine-tuning change by weight decay
// alone, f = p * (1 - c). Their differences are nearly a function of the mantissa of the base.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/words.hpp"
#include "fm_delta/model.hpp"

namespace deltahub {

template <class Words>
struct WeightDecayRows {
  std::vector<std::int16_t> flags;  // 1 for each such row; empty if there are too few
  std::vector<typename Words::Word> decay_steps;
  int decay_bits = 0;
};

namespace detail {

// From a sample of one row: the share c that it lost, and whether decay explains its differences.
struct RowDecay {
  double share = 0;
  bool is_plain = false;
};

template <class Words>
double signed_size(typename Words::Wide delta) {
  return double(std::make_signed_t<typename Words::Wide>(delta));
}

// The mantissa with its implicit leading bit, in units in the last place.
template <class Words>
double significand(typename Words::Wide word) {
  constexpr auto one = std::uint64_t(1) << Words::mantissa_bits;
  return double((std::uint64_t(word) & (one - 1)) | one);
}

template <class Words>
RowDecay decay_of(const std::uint8_t* source, const std::uint8_t* base, std::size_t columns) {
  using Word = typename Words::Word;
  const std::size_t step = std::max<std::size_t>(columns / 64, 1);
  double lost = 0, total = 0;
  const auto visit = [&](std::size_t j, auto&& use) {
    const Word from = load<Word>(base + j * sizeof(Word));
    if (Words::exponent(from) == 0) return;
    use(signed_size<Words>(Words::delta(load<Word>(source + j * sizeof(Word)), from)),
        significand<Words>(from));
  };
  for (std::size_t j = 0; j < columns; j += step)
    visit(j, [&](double delta, double size) { lost -= delta, total += size; });
  if (lost <= 0) return {};
  const RowDecay found{.share = lost / total, .is_plain = false};
  double rest = 0;
  for (std::size_t j = 0; j < columns; j += step)
    visit(j, [&](double delta, double size) { rest += std::abs(delta + found.share * size); });
  return {.share = found.share, .is_plain = rest < lost / 8};
}

}  // namespace detail

// Only for floats of 32 bits or more: in shorter ones decay is seldom as large as one unit.
template <class Words>
WeightDecayRows<Words> find_weight_decay_rows(const std::uint8_t* source, const std::uint8_t* base,
                                              std::size_t rows, std::size_t columns) {
  using Word = typename Words::Word;
  WeightDecayRows<Words> found;
  if (Words::exponent_bits == 0 || Words::word_bits < 32 || rows < 64 || columns < 32) return found;
  const std::size_t row_bytes = columns * sizeof(Word);
  std::vector<detail::RowDecay> decays;
  std::vector<double> shares;
  for (std::size_t i = 0; i < rows; ++i) {
    decays.push_back(
        detail::decay_of<Words>(source + i * row_bytes, base + i * row_bytes, columns));
    if (decays.back().is_plain) shares.push_back(decays.back().share);
  }
  const std::size_t min_rows = std::max<std::size_t>(rows / 64, 8);
  if (shares.size() < min_rows) return found;
  std::ranges::nth_element(shares, shares.begin() + std::ptrdiff_t(shares.size() / 2));
  const double share = shares[shares.size() / 2];

  const int bits = std::min(max_decay_bits, Words::mantissa_bits);
  const int below = Words::mantissa_bits - bits;
  std::vector<double> sums(std::size_t(1) << bits), counts(sums.size());
  std::vector<std::int16_t> flags(rows);
  std::size_t n_flagged = 0;
  for (std::size_t i = 0; i < rows; ++i) {
    if (!decays[i].is_plain || std::abs(decays[i].share - share) > share / 16) continue;
    flags[i] = 1;
    ++n_flagged;
    for (std::size_t j = 0; j < columns; ++j) {
      const std::size_t at = i * row_bytes + j * sizeof(Word);
      const Word from = load<Word>(base + at);
      const double delta = detail::signed_size<Words>(Words::delta(load<Word>(source + at), from));
      // One outlier must not change the mean of a step.
      if (std::abs(delta + share * detail::significand<Words>(from)) >
          share * detail::significand<Words>(from) / 2 + 64)
        continue;
      const std::size_t index = std::size_t(from >> below) & (sums.size() - 1);
      sums[index] += delta;
      counts[index] += 1;
    }
  }
  if (n_flagged < min_rows) return found;
  for (std::size_t index = 0; index < sums.size(); ++index) {
    const double middle = std::ldexp(double(sums.size() + index) + 0.5, below);
    const double step = counts[index] >= 8 ? sums[index] / counts[index] : -share * middle;
    found.decay_steps.push_back(Word(std::make_signed_t<Word>(std::floor(step + 0.5))));
  }
  found.flags = std::move(flags);
  found.decay_bits = bits;
  return found;
}

}  // namespace deltahub
