// Words: how an element of each dtype becomes a key (what its base says about the step) and a delta.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace deltahub {

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

// Words narrower than a register are widened once: `Wide` holds a word, zero-extended, or a delta,
// sign-extended. Deltas are modulo 2^word_bits.
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

// A float with the given exponent width. Words count up from zero away from the base's sign: the
// magnitudes of its own side, and below zero those of the other side. A delta above zero always
// means "further from zero than the base", so a decay looks the same on both sides.
template <class W, int EXPONENT_BITS>
struct FloatWords {
  using Word = W;
  using Wide = WideOf<W>;
  static constexpr int word_bits = 8 * sizeof(W);
  static constexpr int key_bits = EXPONENT_BITS;
  static constexpr unsigned n_keys = 1u << key_bits;
  static constexpr Wide top = Wide(1) << (word_bits - 1);

  static unsigned key(Wide base) {
    return unsigned(base >> (word_bits - 1 - key_bits)) & (n_keys - 1);
  }
  static Wide delta(Wide word, Wide base) {
    const Wide on_side = sign_extended<W>(word ^ (base & top));
    return sign_extended<W>((on_side ^ (sign_mask(on_side) & (top - 1))) - (base & (top - 1)));
  }
  // Bits above the word's are arbitrary.
  static Wide apply(Wide base, Wide delta) {
    const Wide count = sign_extended<W>((base & (top - 1)) + delta);
    return count ^ (sign_mask(count) & (top - 1)) ^ (base & top);
  }
};

// An integer: one key, the delta modulo 2^bits. The sign's offset cancels in the difference.
template <class W>
struct IntegerWords {
  using Word = W;
  using Wide = WideOf<W>;
  static constexpr int word_bits = 8 * sizeof(W);
  static constexpr int key_bits = 0;
  static constexpr unsigned n_keys = 1;

  static unsigned key(Wide) { return 0; }
  static Wide delta(Wide word, Wide base) { return sign_extended<W>(word - base); }
  static Wide apply(Wide base, Wide delta) { return base + delta; }
};

// The kinds of words, numbered for the binding.
enum class WordKind : int { f64, f32, f16, bf16, f8_e4m3, f8_e5m2, int8, int16, int32, int64 };

// Calls `visit` with a value of the words' type. Precondition: `kind` is one of the enumerators.
template <class Visit>
auto with_words(WordKind kind, Visit&& visit) {
  switch (kind) {
    case WordKind::f64: return visit(FloatWords<std::uint64_t, 11>{});
    case WordKind::f32: return visit(FloatWords<std::uint32_t, 8>{});
    case WordKind::f16: return visit(FloatWords<std::uint16_t, 5>{});
    case WordKind::bf16: return visit(FloatWords<std::uint16_t, 8>{});
    case WordKind::f8_e4m3: return visit(FloatWords<std::uint8_t, 4>{});
    case WordKind::f8_e5m2: return visit(FloatWords<std::uint8_t, 5>{});
    case WordKind::int8: return visit(IntegerWords<std::uint8_t>{});
    case WordKind::int16: return visit(IntegerWords<std::uint16_t>{});
    case WordKind::int32: return visit(IntegerWords<std::uint32_t>{});
    default: return visit(IntegerWords<std::uint64_t>{});
  }
}

}  // namespace deltahub
