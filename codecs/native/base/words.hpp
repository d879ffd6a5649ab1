// A word is the bit pattern of one tensor element, as an unsigned integer. This file defines, for
// each dtype, the exponent of a word and the delta between two words.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/isa.hpp"

DELTAHUB_BEGIN

static_assert(std::endian::native == std::endian::little, "tensors and streams are little endian");

template <class T>
inline T load(const std::uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// low_masks[n]: the n lowest bits set.
inline constexpr std::array<std::uint64_t, 65> low_masks = [] {
  std::array<std::uint64_t, 65> masks{};
  for (unsigned n = 1; n <= 64; ++n) masks[n] = masks[n - 1] << 1 | 1;
  return masks;
}();

template <class T>
inline void store(std::uint8_t* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

// Words narrower than a register are widened once: `Wide` holds a zero-extended word or a
// sign-extended delta. Deltas are modulo 2^word_bits.
template <class W>
using WideOf = std::conditional_t<(sizeof(W) < 4), std::uint32_t, W>;

template <class W>
inline WideOf<W> sign_extended(WideOf<W> value) {
  return WideOf<W>(std::make_signed_t<WideOf<W>>(std::make_signed_t<W>(value)));
}

// All ones where the sign-extended delta is negative, else zero.
template <class Wide>
inline Wide sign_mask(Wide delta) {
  return Wide(std::make_signed_t<Wide>(delta) >> (8 * sizeof(Wide) - 1));
}

// A float with the given exponent width. A delta counts representable floats, away from zero on
// the side of the base: a delta above zero always means "further from zero than the base", and a
// word of the other sign is below all words of the base's sign. So a weight decay has deltas of
// one sign for positive and negative weights.
template <class W, int EXPONENT_BITS>
struct FloatWords {
  using Word = W;
  using Wide = WideOf<W>;
  static constexpr int word_bits = 8 * sizeof(W);
  static constexpr int exponent_bits = EXPONENT_BITS;
  static constexpr int mantissa_bits = word_bits - 1 - exponent_bits;
  static constexpr Wide top = Wide(1) << (word_bits - 1);

  static unsigned exponent(Wide word) {
    return unsigned(word >> mantissa_bits) & ((1u << exponent_bits) - 1);
  }
  static Wide delta(Wide word, Wide base) { return sign_extended<W>(step(Word(word), Word(base))); }
  // The word with its sign moved: exponent, leading mantissa bits, sign, then the `n_low` lowest
  // mantissa bits. `joined` reverses it.
  static Word split(Word word, int n_low) {
    const Word low = Word((Word(1) << n_low) - 1), sign = Word(word >> (word_bits - 1));
    const Word leading = Word(Word(word << 1) >> (n_low + 1));
    return Word(Word(leading << (n_low + 1)) | Word(sign << n_low) | (word & low));
  }
  static Word joined(Word value, int n_low) {
    const Word low = Word((Word(1) << n_low) - 1);
    const Word sign = Word(shifted_left(value, word_bits - 1 - n_low) & Word(top));
    return Word(sign | (value & low) | (Word(value >> 1) & Word(~low)));
  }
  // value << n. For 16-bit words this is a product, because it stays in vectors of 16-bit
  // elements: in C++ a shift is done on int, by up to 31, for which compilers widen the elements.
  static Word shifted_left(Word value, int n) {
    if constexpr (word_bits == 16)
      return Word(unsigned(value) * Word(1u << n));
    else
      return Word(value << n);
  }
  // The delta between two words, and the word that a delta leads to, in the width of a word, so
  // that a vector holds as many elements as possible.
  static Word step(Word word, Word base) {
    const Word low = Word(top - 1), on_side = Word(word ^ (base & Word(top)));
    const Word below = Word(std::make_signed_t<Word>(on_side) >> (word_bits - 1));
    return Word((on_side ^ (below & low)) - (base & low));
  }
  static Word moved(Word base, Word delta) {
    const Word low = Word(top - 1), count = Word((base & low) + delta);
    const Word below = Word(std::make_signed_t<Word>(count) >> (word_bits - 1));
    return Word(count ^ (below & low) ^ (base & Word(top)));
  }
};

// An integer: no exponent; the delta is the difference modulo 2^bits. The sign needs no offset,
// because it would cancel in the difference.
template <class W>
struct IntegerWords {
  using Word = W;
  using Wide = WideOf<W>;
  static constexpr int word_bits = 8 * sizeof(W);
  static constexpr int exponent_bits = 0;
  static constexpr int mantissa_bits = 0;

  static unsigned exponent(Wide) { return 0; }
  static Wide delta(Wide word, Wide base) { return sign_extended<W>(word - base); }
  static Word step(Word word, Word base) { return Word(word - base); }
  static Word moved(Word base, Word delta) { return Word(base + delta); }
};

using F64Words = FloatWords<std::uint64_t, 11>;
using F32Words = FloatWords<std::uint32_t, 8>;
using F16Words = FloatWords<std::uint16_t, 5>;
using Bf16Words = FloatWords<std::uint16_t, 8>;
using F8E4M3Words = FloatWords<std::uint8_t, 4>;
using F8E5M2Words = FloatWords<std::uint8_t, 5>;

// The exponent bias, which is the stored exponent of 1.0; the exponents of weights lie around it.
template <class Words>
inline constexpr int middle_exponent =
    Words::exponent_bits == 0 ? 0 : (1 << std::max(Words::exponent_bits - 1, 0)) - 1;

// The kinds of words, by the numbers that the Python binding uses.
enum class WordKind : int { f64, f32, f16, bf16, f8_e4m3, f8_e5m2, int8, int16, int32, int64 };

template <class Words>
inline constexpr int kind_of = -1;
template <>
inline constexpr int kind_of<F64Words> = 0;
template <>
inline constexpr int kind_of<F32Words> = 1;
template <>
inline constexpr int kind_of<F16Words> = 2;
template <>
inline constexpr int kind_of<Bf16Words> = 3;
template <>
inline constexpr int kind_of<F8E4M3Words> = 4;
template <>
inline constexpr int kind_of<F8E5M2Words> = 5;
template <class W>
inline constexpr int kind_of<IntegerWords<W>> = 6 + std::countr_zero(sizeof(W));

// Calls `visit` with an object of the type of the words. `kind` must be one of the enumerators.
template <class Visit>
auto with_words(WordKind kind, Visit&& visit) {
  switch (kind) {
    case WordKind::f64: return visit(F64Words{});
    case WordKind::f32: return visit(F32Words{});
    case WordKind::f16: return visit(F16Words{});
    case WordKind::bf16: return visit(Bf16Words{});
    case WordKind::f8_e4m3: return visit(F8E4M3Words{});
    case WordKind::f8_e5m2: return visit(F8E5M2Words{});
    case WordKind::int8: return visit(IntegerWords<std::uint8_t>{});
    case WordKind::int16: return visit(IntegerWords<std::uint16_t>{});
    case WordKind::int32: return visit(IntegerWords<std::uint32_t>{});
    default: return visit(IntegerWords<std::uint64_t>{});
  }
}

DELTAHUB_END
