// Words of floats as doubles, and doubles rounded to words.
#pragma once

#include <bit>
#include <cstdint>

#include "base/short_floats.hpp"
#include "base/words.hpp"

DELTAHUB_BEGIN
namespace {

// The magnitude from which on words are not finite. F8_E4M3 has no infinity, and one NaN.
template <class Words>
inline constexpr std::uint64_t first_infinite =
    std::uint64_t((1u << Words::exponent_bits) - 1) << Words::mantissa_bits;
template <>
inline constexpr std::uint64_t first_infinite<F8E4M3Words> = 0x7f;

// The value of a finite word; exact.
template <class Words>
inline double widened(typename Words::Word word) {
  if constexpr (Words::word_bits == 64) return std::bit_cast<double>(word);
  // A byte has the form of an F16 word with fewer mantissa bits, and another bias.
  if constexpr (Words::word_bits == 8) {
    constexpr int shift = F16Words::mantissa_bits - Words::mantissa_bits;
    constexpr int bias = middle_exponent<F16Words> - middle_exponent<Words>;
    const std::uint32_t wide =
        std::uint32_t(word & 0x7f) << shift | std::uint32_t(word & 0x80) << 8;
    return double(number<F16Words>(wide)) * double(1 << bias);
  }
  if constexpr (Words::word_bits == 16 || Words::word_bits == 32)
    return double(number<Words>(word));
}

// The magnitude of a double that is not NaN in the form of a word with `kept` mantissa bits: the
// nearest, ties to even; infinity if there is none so large. By integers, because a conversion to
// float would round a second time.
template <class Words>
inline std::uint64_t rounded_magnitude(double value, int kept = Words::mantissa_bits) {
  const std::uint64_t infinity = first_infinite<Words> >> (Words::mantissa_bits - kept);
  const std::uint64_t magnitude = std::bit_cast<std::uint64_t>(value) & low_masks[63];
  constexpr std::uint64_t double_infinity = std::uint64_t(0x7ff) << 52;
  // The double's exponent field for the smallest normal word; below it more bits are dropped.
  constexpr std::int64_t smallest = 1023 - middle_exponent<Words> + 1;
  const auto exponent = std::int64_t(magnitude >> 52);
  const std::int64_t hidden = exponent > 0 ? std::int64_t(1) << 52 : 0;
  const std::int64_t below = exponent < smallest ? smallest - exponent : 0;
  // 54 dropped bits leave less than half a unit, which rounds to zero.
  const std::int64_t dropped = 52 - kept + (below < 54 ? below : 54);
  const std::uint64_t drop = std::uint64_t(dropped < 54 ? dropped : 54);
  const std::uint64_t significand = (magnitude & low_masks[52]) | std::uint64_t(hidden);
  const std::uint64_t half = std::uint64_t(1) << (drop - 1);
  const std::uint64_t is_odd = (significand >> drop) & 1;
  const std::uint64_t rounded = (significand + half - 1 + is_odd) >> drop;
  // `rounded` has the hidden bit of a normal word, which adds 1 to the exponent field.
  const std::int64_t field = exponent > smallest ? exponent - smallest : 0;
  const std::uint64_t finite = (std::uint64_t(field) << kept) + rounded;
  return magnitude < double_infinity && finite < infinity ? finite : infinity;
}

// The nearest word, ties to even; infinity if there is none so large; one NaN for all NaNs.
template <class Words>
inline typename Words::Word narrowed(double value) {
  using Word = typename Words::Word;
  constexpr std::uint64_t infinity = first_infinite<Words>;
  constexpr std::uint64_t quiet_nan = infinity | std::uint64_t(1) << (Words::mantissa_bits - 1);
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const std::uint64_t magnitude = bits & low_masks[63];
  constexpr std::uint64_t double_infinity = std::uint64_t(0x7ff) << 52;
  std::uint64_t rounded = magnitude;
  if constexpr (Words::word_bits < 64) rounded = rounded_magnitude<Words>(value);
  if (magnitude > double_infinity) return Word(quiet_nan);
  return Word(rounded | (bits >> 63) << (Words::word_bits - 1));
}

}  // namespace
DELTAHUB_END
