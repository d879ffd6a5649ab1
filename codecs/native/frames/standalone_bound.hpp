// A lower bound of a frame's size without a base, estimated from a small sample. Not part of the
// format: if a delta is smaller than this bound, the encoder does not try other codecs.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "coder/histograms.hpp"
#include "kernels/codec_interface.hpp"
#include "neuzip/plan.hpp"
#include "planner/sampled_ranges.hpp"

namespace deltahub {

namespace detail {

// Entropy of all symbols with these counts, in bits.
template <class Counts>
std::uint64_t entropy_bits(const Counts& counts, std::uint64_t total) {
  std::uint64_t log_products_sum = 0;
  for (const auto count : counts) log_products_sum += log_product(count);
  return (log_product(total) - log_products_sum) >> 16;
}

inline std::uint64_t scale_to_frame(std::uint64_t bits, std::size_t seen_bytes, std::size_t size) {
  return std::uint64_t(double(bits) / 8 * (double(size) / double(seen_bytes)));
}

// Bound for neuzip_lossless: the entropy of leading bits in ranges spread over the frame. On real
// tensors the sampling error is below 1/100; the bound is lowered by 1/8 for tensors whose rows
// differ.
template <class Words>
std::uint64_t float_bound(View source) {
  using Word = typename Words::Word;
  constexpr std::size_t range_words = 64, max_ranges = 32, word_bytes = sizeof(Word);
  constexpr int n_low = Words::mantissa_bits - max_coded_mantissa_bits<Words>;
  constexpr std::size_t n_values = std::size_t(1)
                                   << (Words::exponent_bits + max_coded_mantissa_bits<Words>);
  const std::size_t n = source.size() / word_bytes,
                    n_ranges = std::min(n / range_words, max_ranges);
  if (n_ranges == 0) return 0;
  const auto begin_of = [&](std::size_t i) {
    return (n - range_words) * i / max_ranges * word_bytes;
  };
  std::array<std::uint16_t, n_values> counts{};
  std::size_t n_seen = 0;
  Word all_bits = 0;
  constexpr std::size_t n_upcoming = 8;
  for (std::size_t i = 0; i < n_upcoming; ++i)
    prefetch(source.data() + begin_of(i), range_words * word_bytes);
  for (std::size_t i = 0; i < max_ranges; i += max_ranges / n_ranges, n_seen += range_words) {
    prefetch(source.data() + begin_of(std::min(i + n_upcoming, max_ranges)),
             range_words * word_bytes);
    const std::uint8_t* const words = source.data() + begin_of(i);
    for (std::size_t j = 0; j < range_words; ++j) {
      const Word word = load<Word>(words + j * word_bytes);
      all_bits |= word;
      ++counts[std::size_t(word >> n_low) & (n_values - 1)];
    }
  }
  // Bits that are zero in the sample may be zero in all words. The sign is always stored.
  const int zero_bits = std::min(std::countr_zero(all_bits), Words::mantissa_bits);
  const auto raw = std::uint64_t(std::max(n_low - zero_bits, 0) + 1);
  const std::uint64_t bits = entropy_bits(counts, n_seen) + raw * n_seen;
  return scale_to_frame(bits - bits / 8, n_seen * word_bytes, source.size());
}

// Bound for zstd: the entropy of those bytes in one range of 4 KiB that do not repeat earlier
// bytes. Zstd also finds repeats shorter than 8 bytes; the bound is lowered by 1/4 for them.
inline std::uint64_t zstd_bound(View source) {
  constexpr std::size_t window = 8, step = 2, max_bytes = 1 << 12;
  const std::size_t n = std::min(source.size(), max_bytes);
  if (n < window) return 0;
  const std::uint8_t* const bytes = source.data() + (source.size() - n) / 2 / window * window;
  // Adding to a count that was stored just before stalls, so that two tables are used in turn.
  std::array<std::uint16_t, 256> counts{}, odd_counts{};
  std::array<std::uint16_t, 2048> last_positions{};  // the last position of a window, by its hash
  std::size_t repeated = 0;
  for (std::size_t i = 0; i + window <= n; i += step) {
    ++counts[bytes[i]], ++odd_counts[bytes[i + 1]];
    const auto here = load<std::uint64_t>(bytes + i);
    std::uint16_t& last_position = last_positions[here * 0x9e3779b185ebca87 >> 53];
    repeated += i > 0 && load<std::uint64_t>(bytes + last_position) == here;
    last_position = std::uint16_t(i);
  }
  const std::size_t n_seen = (n - window) / step * step + step;
  for (std::size_t value = 0; value < counts.size(); ++value)
    counts[value] = std::uint16_t(counts[value] + odd_counts[value]);
  const std::size_t covered = std::min(n_seen, repeated * step + (repeated > 0) * window);
  const std::uint64_t bits = entropy_bits(counts, n_seen) * (n_seen - covered) / n_seen;
  return scale_to_frame(bits - bits / 4, n_seen, source.size());
}

}  // namespace detail

// The estimated lower bound in bytes of these words with neuzip_lossless or zstd. 0 for integers,
// for which there is no bound.
inline std::uint64_t standalone_bound(int kind, View source) {
  return with_words(word_kind(kind), [&]<class Words>(Words) -> std::uint64_t {
    if constexpr (Words::exponent_bits == 0)
      return 0;
    else
      return std::min(detail::float_bound<Words>(source), detail::zstd_bound(source));
  });
}

}  // namespace deltahub
