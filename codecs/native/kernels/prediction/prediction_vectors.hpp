// Prediction, eight words at a time, of the words in a fast range, which nearly all are;
// kernels/prediction/prediction.hpp defines the result. kernels/prediction/prediction_avx2.hpp
// does the same by intrinsics.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/vectors.hpp"
#include "base/words.hpp"
#include "kernels/prediction/prediction.hpp"

DELTAHUB_BEGIN
namespace {

// 16-bit words for which a float addition gives the exact sum of word and product: normal numbers
// that are multiples of the unit of the product, with an exponent not above that of the unit, and
// a sum of at most 23 bits. With a coarse unit nearly all words are such. Their exponents are
// changed by additions, to those of integers and back, so that all is exact in every rounding
// mode. The conversion rounds a product that is too long for a float; but its sum with a word of
// 22 bits then has more than 23 bits, and is outside the range.
template <class Words>
class FastPrediction {
 public:
  static constexpr std::size_t words_per_vector = 8;

  explicit FastPrediction(std::int32_t floor)
      : to_integer_((127 + m + guard - floor) * (1 << 23)),
        back_((floor - m - guard - 127) * (1 << m)) {
    const std::int32_t moved = floor - m - guard - 127;
    min_word_ = std::max(1, floor - guard) << m;
    max_word_ = ((floor + 1) << m) - 1;
    // Rounding may have carried: the exponent before it may be one less.
    const std::int32_t low = std::max(127, 2 - moved),
                       high = std::min(149, max_exponent - 2 - moved);
    min_sum_ = low << m;
    max_sum_ = ((high + 1) << m) - 1;
    exists_ = low <= high && floor < max_exponent;
  }
  bool exists() const { return exists_; }

  // Predicts eight words. An element is nonzero if its word is outside the range; its result in
  // `out` is then arbitrary.
  Uint16x8 predict(const std::uint8_t* from, const std::int32_t* product,
                   std::uint8_t* out) const {
    const auto words = load_vector<Uint16x8>(from);
    const auto first = load_vector<Int32x4>(product), last = load_vector<Int32x4>(product + 4);
    const auto size = Int16x8(words & std::uint16_t(0x7fff));
    const auto pairs = Uint32x4(words);
    const Uint32x4 even = sums(pairs << 16, __builtin_shufflevector(first, last, 0, 2, 4, 6));
    const Uint32x4 odd = sums(pairs & high_half, __builtin_shufflevector(first, last, 1, 3, 5, 7));
    auto is_outside = (size < min_word()) | (size > max_word());
    if constexpr (m == 7) {
      const auto both = Uint16x8((even >> 16) | (odd & high_half));
      const auto sum = Int16x8(both & std::uint16_t(0x7fff));
      is_outside |= (sum < std::int16_t(min_sum_)) | (sum > std::int16_t(max_sum_));
      store_vector(out, Uint16x8(both + std::uint16_t(back_)));
      return Uint16x8(is_outside);
    } else {
      Uint32x4 outside_even, outside_odd;
      const Uint32x4 low = word_of(even, outside_even), high = word_of(odd, outside_odd);
      store_vector(out, Uint16x8(low | high << 16));
      return Uint16x8(is_outside) | Uint16x8((outside_even >> 16) | (outside_odd & high_half));
    }
  }

 private:
  static constexpr std::int32_t m = Words::mantissa_bits, guard = guard_bits(m);
  static constexpr std::int32_t max_exponent = (1 << Words::exponent_bits) - 1;
  static constexpr int dropped_bits = 23 - m;
  static constexpr std::uint32_t high_half = 0xffff0000;

  std::int16_t min_word() const { return std::int16_t(min_word_); }
  std::int16_t max_word() const { return std::int16_t(max_word_); }

  // The sums of words (in the high halves) and products, as floats rounded to the bits of a word.
  Uint32x4 sums(Uint32x4 words, Int32x4 product) const {
    if constexpr (m != 7)  // the sign stays in the highest bit
      words = Uint32x4(Int32x4(words) >> (dropped_bits - 10)) &
              (0x80000000u | ((1u << (31 - (dropped_bits - 10))) - 1));
    const auto integers = Float32x4(words + std::uint32_t(to_integer_));
    const auto sum = Uint32x4(integers + __builtin_convertvector(product, Float32x4));
    return sum + ((1u << (dropped_bits - 1)) - 1) + (sum >> dropped_bits & 1u);
  }
  Uint32x4 word_of(Uint32x4 rounded, Uint32x4& outside) const {
    constexpr std::uint32_t sign = 1u << (31 - dropped_bits);
    const Uint32x4 size = rounded >> dropped_bits & (sign - 1);
    outside = Uint32x4((Int32x4(size) < min_sum_) | (Int32x4(size) > max_sum_));
    return ((size + std::uint32_t(back_)) & 0x7fffu) | (rounded >> 16 & 0x8000u);
  }

  std::int32_t to_integer_, back_;
  std::int32_t min_word_, max_word_, min_sum_, max_sum_;
  bool exists_;
};

// The same for 32-bit words, by doubles, which hold the sum of any word of 30 bits and any product
// of 30 bits. The bits beyond those of a word are rounded by integer arithmetic.
template <>
class FastPrediction<F32Words> {
 public:
  static constexpr std::size_t words_per_vector = 4;

  explicit FastPrediction(std::int32_t floor)
      : to_integer_(std::uint64_t(1023 + m + guard - floor) << 52),
        back_(floor - m - guard - 1023),
        min_word_(std::max(1, floor - guard) << m),
        max_word_(std::int32_t((std::uint32_t(floor + 1) << m) - 1)) {
    // Rounding may have carried: the exponent before it may be one less.
    const std::int32_t low = std::max(1023, 2 - back_), high = max_exponent - 2 - back_;
    min_sum_ = low << 20;
    max_sum_ = std::int32_t((std::uint32_t(std::min(high, 2046) + 1) << 20) - 1);
    exists_ = low <= high && floor < max_exponent;
  }
  bool exists() const { return exists_; }

  // Predicts four words. An element is nonzero if its word is outside the range; its result in
  // `out` is then arbitrary.
  Uint32x4 predict(const std::uint8_t* from, const std::int32_t* product,
                   std::uint8_t* out) const {
    constexpr std::int32_t limit = 1 << 30;
    constexpr std::uint32_t top = 0x80000000;
    const auto words = load_vector<Uint32x4>(from);
    const auto by = load_vector<Int32x4>(product);
    const auto size = Int32x4(words & ~top);
    const Uint32x4 none = {};
    const Uint64x2 first = sums(Uint64x2(__builtin_shufflevector(none, words, 0, 4, 1, 5)),
                                __builtin_shufflevector(by, by, 0, 1));
    const Uint64x2 last = sums(Uint64x2(__builtin_shufflevector(none, words, 2, 6, 3, 7)),
                               __builtin_shufflevector(by, by, 2, 3));
    const auto high = __builtin_shufflevector(Uint32x4(first), Uint32x4(last), 1, 3, 5, 7);
    const auto low = __builtin_shufflevector(Uint32x4(first >> dropped_bits),
                                             Uint32x4(last >> dropped_bits), 0, 2, 4, 6);
    store_vector(out, Uint32x4(((low + (std::uint32_t(back_) << m)) & ~top) | (high & top)));
    const auto sum = Int32x4(high & ~top);
    return Uint32x4((size < min_word_) | (size > max_word_) | (sum < min_sum_) | (sum > max_sum_) |
                    (by < -limit) | (by >= limit));
  }

 private:
  using Int32x2 = std::int32_t __attribute__((vector_size(8)));
  static constexpr std::int32_t m = F32Words::mantissa_bits, guard = guard_bits(m);
  static constexpr std::int32_t max_exponent = (1 << F32Words::exponent_bits) - 1;
  static constexpr int dropped_bits = 52 - m;

  // The sums of words (in the high halves) and products, as doubles rounded to the bits of a word.
  Uint64x2 sums(Uint64x2 words, Int32x2 product) const {
    constexpr std::uint64_t top = std::uint64_t(1) << 63;
    const Uint64x2 size = ((words & ~top) >> 3) + to_integer_;
    const auto integers = Float64x2(size | (words & top));
    const auto sum = Uint64x2(integers + __builtin_convertvector(product, Float64x2));
    return sum + ((std::uint64_t(1) << (dropped_bits - 1)) - 1) +
           (sum >> dropped_bits & std::uint64_t(1));
  }

  std::uint64_t to_integer_;
  std::int32_t back_, min_word_, max_word_, min_sum_, max_sum_;
  bool exists_;
};

}  // namespace
DELTAHUB_END
