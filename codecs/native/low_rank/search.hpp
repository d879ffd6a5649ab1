// The search for a low-rank product of a frame. It leaves out new rows and, if that helps,
// outliers, and it narrows F32 words whose values are all BF16 or F16 numbers. Not part of the
// format.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "fm_delta/plan.hpp"
#include "kernels/codec_interface.hpp"
#include "low_rank/outliers.hpp"
#include "low_rank/pair_search.hpp"
#include "low_rank/size_estimate.hpp"
#include "low_rank/widened_floats.hpp"

namespace deltahub {

struct FoundProduct {
  LowRank low_rank;         // of rank 0 if none pays
  bool is_widened = false;  // the words are F32, and the product was found in narrowed words
};

namespace detail {

// The product is 0 in the base's last rows that are all zero. Such rows are new, as in an extended
// vocabulary, and their differences are so large that they would take up all components.
template <class Words>
LowRank find_in_words(const Kernels& kernels, const SearchKernels& search, View source, View base,
                      std::size_t rows, std::size_t columns, bool is_max) {
  // The memory of a search grows with the columns: beyond these it would take more than 160 MiB.
  constexpr std::size_t most_columns = std::size_t(1) << 16;
  if (std::min(rows, columns) < least_side || rows > greatest_side<Words> || columns > most_columns)
    return {};
  const std::size_t row_bytes = columns * sizeof(typename Words::Word);
  std::size_t known = rows;
  const auto is_zero = [&](std::size_t row) {
    const View words = base.subspan(row * row_bytes, row_bytes);
    return words[0] == 0 && std::memcmp(words.data(), words.data() + 1, row_bytes - 1) == 0;
  };
  while (known > 0 && is_zero(known - 1)) --known;
  if (known < least_side) return {};
  const auto rows_of = [&](const std::uint8_t* words) {
    return WordRows{words, std::ptrdiff_t(row_bytes), known, columns};
  };
  const WordRows words = rows_of(source.data()), near = rows_of(base.data());
  const auto run = [&](const WordRows& from, bool& needs_outliers_out) {
    LowRankSearch<Words> once(kernels, search, from, near, is_max);
    LowRank found = once.run();
    needs_outliers_out = once.needs_outliers_out();
    return found;
  };
  bool needs_outliers_out = false;
  LowRank found = run(words, needs_outliers_out);
  if (needs_outliers_out) {
    const std::vector<std::uint8_t> cleaned = without_outliers<Words>(search, words, near);
    if (!cleaned.empty()) {
      LowRank without = run(rows_of(cleaned.data()), needs_outliers_out);
      constexpr std::size_t words_to_compare = std::size_t(1) << 13;
      SizeEstimate<Words> estimate(kernels, search, words, near, words_to_compare);
      const auto bits = [&](LowRank& product) {
        return product.rank > 0 ? estimate.with(product, false) : estimate.without();
      };
      if (bits(without) < bits(found)) found = std::move(without);
    }
  }
  found.left.resize(rows * std::size_t(found.rank));
  return found;
}

// The product of F32 words, searched in words of `Short`; nothing if one of them has no such word.
template <class Short>
std::optional<LowRank> find_in_narrowed(const Kernels& kernels, const SearchKernels& search,
                                        View source, View base, std::size_t rows,
                                        std::size_t columns, bool is_max) {
  const auto words = narrowed<Short>(source);
  if (!words) return {};
  const auto near = narrowed<Short>(base);
  if (!near) return {};
  LowRank found = find_in_words<Short>(kernels, search, *words, *near, rows, columns, is_max);
  const auto unit = []<class Words>(Words) {
    return middle_exponent<Words> + Words::mantissa_bits + guard_bits(Words::mantissa_bits);
  };
  found.floor += unit(F32Words{}) - unit(Short{});
  const bool has_exponent = found.floor >= 1 && found.floor < (1 << F32Words::exponent_bits) - 1;
  return has_exponent ? std::move(found) : LowRank{};
}

}  // namespace detail

// source, base: rows x columns words of BF16, F16 or F32. The result is the same on every machine
// and for any number of concurrent searches.
inline FoundProduct find_low_rank(const Kernels& kernels, const SearchKernels& search,
                                  WordKind kind, View source, View base, std::size_t rows,
                                  std::size_t columns, bool is_max) {
  using namespace detail;
  switch (kind) {
    case WordKind::bf16:
      return {find_in_words<Bf16Words>(kernels, search, source, base, rows, columns, is_max)};
    case WordKind::f16:
      return {find_in_words<F16Words>(kernels, search, source, base, rows, columns, is_max)};
    default:
      break;
  }
  if (auto found =
          find_in_narrowed<Bf16Words>(kernels, search, source, base, rows, columns, is_max))
    return {std::move(*found), true};
  if (auto found = find_in_narrowed<F16Words>(kernels, search, source, base, rows, columns, is_max))
    return {std::move(*found), true};
  return {find_in_words<F32Words>(kernels, search, source, base, rows, columns, is_max)};
}

}  // namespace deltahub
