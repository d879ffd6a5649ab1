// What a frame's words would take without their base, from a little of them. Not part of the format:
// it says where nobody has to look closer.
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

// Bits of a code that is made for these counts.
template <class Counts>
std::uint64_t entropy_bits(const Counts& counts, std::uint64_t total) {
  std::uint64_t own = 0;
  for (const auto count : counts) own += log_product(count);
  return (log_product(total) - own) >> 16;
}

inline std::uint64_t of_all(std::uint64_t bits, std::size_t seen_bytes, std::size_t size) {
  return std::uint64_t(double(bits) / 8 * (double(size) / double(seen_bytes)));
}

// By the entropy of the leading bits in pieces from everywhere. On real tensors sampling errs by less
// than a hundredth; an eighth is left for those in which rows differ.
template <class Words>
std::uint64_t least_float_bytes(View source) {
  using Word = typename Words::Word;
  constexpr std::size_t piece = 64, most_pieces = 32, item = sizeof(Word);
  constexpr int n_low = Words::mantissa_bits - most_tried<Words>;
  constexpr std::size_t n_values = std::size_t(1) << (Words::exponent_bits + most_tried<Words>);
  const std::size_t n = source.size() / item, n_pieces = std::min(n / piece, most_pieces);
  if (n_pieces == 0) return 0;
  const auto begin_of = [&](std::size_t i) { return (n - piece) * i / most_pieces * item; };
  std::array<std::uint16_t, n_values> counts{};
  std::size_t seen = 0;
  Word digits = 0;
  constexpr std::size_t n_ahead = 8;
  for (std::size_t i = 0; i < n_ahead; ++i) fetch(source.data() + begin_of(i), piece * item);
  for (std::size_t i = 0; i < most_pieces; i += most_pieces / n_pieces, seen += piece) {
    fetch(source.data() + begin_of(std::min(i + n_ahead, most_pieces)), piece * item);
    const std::uint8_t* const words = source.data() + begin_of(i);
    for (std::size_t j = 0; j < piece; ++j) {
      const Word word = load<Word>(words + j * item);
      digits |= word;
      ++counts[std::size_t(word >> n_low) & (n_values - 1)];
    }
  }
  // Digits that are zero in all of these may be zero in all words, and the sign is always kept.
  const int zero_bits = std::min(std::countr_zero(digits), Words::mantissa_bits);
  const auto raw = std::uint64_t(std::max(n_low - zero_bits, 0) + 1);
  const std::uint64_t bits = entropy_bits(counts, seen) + raw * seen;
  return of_all(bits - bits / 8, seen * item, source.size());
}

// By the entropy of the bytes of one run that do not repeat earlier ones of it. Zstd may find shorter
// repeats than those looked for: a quarter is left for that.
inline std::uint64_t least_zstd_bytes(View source) {
  constexpr std::size_t window = 8, step = 2, most = 1 << 12;
  const std::size_t n = std::min(source.size(), most);
  if (n < window) return 0;
  const std::uint8_t* const bytes = source.data() + (source.size() - n) / 2 / window * window;
  // A count that has just been stored is slow to load: two take turns.
  std::array<std::uint16_t, 256> counts{}, others{};
  std::array<std::uint16_t, 2048> places{};  // of a window, by its hash
  std::size_t repeated = 0;
  for (std::size_t i = 0; i + window <= n; i += step) {
    ++counts[bytes[i]], ++others[bytes[i + 1]];
    const auto here = load<std::uint64_t>(bytes + i);
    std::uint16_t& place = places[here * 0x9e3779b185ebca87 >> 53];
    repeated += i > 0 && load<std::uint64_t>(bytes + place) == here;
    place = std::uint16_t(i);
  }
  const std::size_t seen = (n - window) / step * step + step;
  for (std::size_t value = 0; value < counts.size(); ++value)
    counts[value] = std::uint16_t(counts[value] + others[value]);
  const std::size_t covered = std::min(seen, repeated * step + (repeated > 0) * window);
  const std::uint64_t bits = entropy_bits(counts, seen) * (seen - covered) / seen;
  return of_all(bits - bits / 4, seen, source.size());
}

}  // namespace detail

// About how many bytes these words take at least by neuzip_lossless or zstd. Zero for words that are
// no floats, of which this says nothing.
inline std::uint64_t least_bytes_alone(int kind, View source) {
  return with_words(word_kind(kind), [&]<class Words>(Words) -> std::uint64_t {
    if constexpr (Words::exponent_bits == 0)
      return 0;
    else
      return std::min(detail::least_float_bytes<Words>(source), detail::least_zstd_bytes(source));
  });
}

}  // namespace deltahub
