// F32 words whose values are all BF16 or F16 numbers. The product is searched in the shorter words,
// because their rounding is known. Not part of the format.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/short_floats.hpp"
#include "base/words.hpp"
#include "kernels/codec_interface.hpp"

namespace deltahub {
namespace detail {

// The F16 word of the same number, infinity or NaN; nothing if F16 does not have it.
inline std::optional<std::uint16_t> as_f16(std::uint32_t word) {
  const auto sign = std::uint16_t(word >> 16 & 0x8000);
  const std::uint32_t magnitude = word & 0x7fffffff;
  constexpr std::uint32_t rebased = std::uint32_t(127 - 15) << 23, dropped = 13;
  if ((magnitude & low_masks[dropped]) != 0) return {};
  if (magnitude >= infinite<F32Words>)
    return std::uint16_t(sign | infinite<F16Words> | (magnitude >> dropped & 0x3ff));
  if (magnitude >= rebased + (1u << 23)) {
    const std::uint32_t found = (magnitude - rebased) >> dropped;
    if (found >= infinite<F16Words>) return {};
    return std::uint16_t(sign | found);
  }
  const float units = std::bit_cast<float>(magnitude) * 0x1p24f;  // of subnormal numbers
  const auto found = std::uint32_t(units);
  if (float(found) != units) return {};
  return std::uint16_t(sign | found);
}

}  // namespace detail

// The words as BF16 or F16; nothing if one of them has no such word.
template <class Short>
std::optional<std::vector<std::uint8_t>> narrowed(View words) {
  const std::size_t n = words.size() / sizeof(std::uint32_t);
  std::vector<std::uint8_t> found;
  for (std::size_t i = 0; i < n; ++i) {
    const auto word = load<std::uint32_t>(words.data() + i * sizeof word);
    std::uint16_t shorter = std::uint16_t(word >> 16);
    if constexpr (Short::exponent_bits == 8) {
      if ((word & 0xffff) != 0) return {};
    } else {
      const std::optional<std::uint16_t> same = detail::as_f16(word);
      if (!same) return {};
      shorter = *same;
    }
    if (found.empty()) found.resize(n * sizeof shorter);
    store(found.data() + i * sizeof shorter, shorter);
  }
  return found;
}

}  // namespace deltahub
