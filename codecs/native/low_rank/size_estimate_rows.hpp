// What a product would make of a frame's words, by some of its rows. Not part of the format.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "fm_delta/plan.hpp"
#include "kernels/low_rank/kernels.hpp"
#include "low_rank/int16_rows.hpp"
#include "low_rank/size_estimate.hpp"

namespace deltahub {

template <class Words>
class TrialRows {
 public:
  // n_words: about so many are coded for a try.
  TrialRows(const Kernels& kernels, const SearchKernels& search, WordRows source, WordRows base,
            std::size_t n_words)
      : kernels_(kernels), search_(search), source_(source), base_(base),
        tried_(some_rows(std::clamp<std::size_t>(n_words / source.columns, n_few, 64))) {}

  // Bits of all words without a product.
  double without() {
    if (!without_) without_ = bits_of(tried_, {});
    return *without_;
  }
  // The same with the product, and those of its factors. may_be_rounded: says in it, too, whether it is
  // rounded before it is added.
  double with(LowRank& found, bool may_be_rounded) const {
    const auto bits = [&](const std::vector<std::size_t>& rows, bool is_rounded) {
      const std::vector<std::int16_t> left = left_of(found, rows);
      return bits_of(rows, {std::size_t(found.rank), found.floor, is_rounded, left.data(),
                            found.right.data()});
    };
    if (may_be_rounded) {
      const std::vector<std::size_t> few = some_rows(n_few);
      found.is_rounded = bits(few, true) < bits(few, false);
    }
    const std::vector<std::size_t> counted = some_rows(64);
    const double of_left = factor_bits(search_, left_of(found, counted).data(), counted.size(),
                                       std::size_t(found.rank));
    return bits(tried_, found.is_rounded) +
           of_left * double(source_.rows + source_.columns) / double(counted.size());
  }

 private:
  static constexpr std::size_t n_few = 4;  // rows that tell whether products are rounded

  // At most so many, from everywhere.
  std::vector<std::size_t> some_rows(std::size_t most) const {
    const std::size_t n = std::min(most, source_.rows);
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < n; ++i)
      found.push_back(i * (source_.rows - 1) / std::max<std::size_t>(n - 1, 1));
    return found;
  }
  static std::vector<std::int16_t> left_of(const LowRank& found,
                                           const std::vector<std::size_t>& rows) {
    const auto rank = std::size_t(found.rank);
    std::vector<std::int16_t> left;
    left.reserve(rows.size() * rank);
    for (const std::size_t row : rows)
      left.insert(left.end(), &found.left[row * rank], &found.left[row * rank] + rank);
    return left;
  }
  double bits_of(const std::vector<std::size_t>& rows, const TrialFactors& factors) const {
    std::vector<const std::uint8_t*> source, base;
    for (const std::size_t row : rows) source.push_back(source_[row]), base.push_back(base_[row]);
    Trial<Words> trial(kernels_, search_, source_.columns);
    return trial.bits(source, base, rows.size(), factors) * double(source_.rows) /
           double(rows.size());
  }

  const Kernels& kernels_;
  const SearchKernels& search_;
  WordRows source_, base_;
  std::vector<std::size_t> tried_;
  std::optional<double> without_;
};

}  // namespace deltahub
