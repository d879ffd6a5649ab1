// Words: how an element of each dtype becomes a key (what its base says about the step) and a delta.
#pragma once

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

template <class T>
inline void store(std::uint8_t* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

// A float with the given field widths. Words are compared in numeric order, mirrored where the base is
// negative: a delta above zero always means "further from zero than the base", so a decay looks the
// same on both sides.
template <class W, int EXPONENT_BITS>
struct FloatWords {
  using Word = W;
  static constexpr int word_bits = 8 * sizeof(W);
  static constexpr int key_bits = EXPONENT_BITS;
  static constexpr unsigned n_keys = 1u << key_bits;
  static constexpr W top = W(W(1) << (word_bits - 1));

  static unsigned key(W base) {
    return unsigned(base >> (word_bits - 1 - key_bits)) & (n_keys - 1);
  }
  static W delta(W word, W base) {
    const W mirrored = W(word ^ (base & top));
    const W in_order = W(mirrored ^ (sign_mask(mirrored) | top));
    return W(in_order - (base | top));
  }
  static W apply(W base, W delta) {
    const W in_order = W((base | top) + delta);
    const W mirrored = W(in_order ^ (W(~sign_mask(in_order)) | top));
    return W(mirrored ^ (base & top));
  }

 private:
  static W sign_mask(W word) { return W(std::make_signed_t<W>(word) >> (word_bits - 1)); }
};

// An integer: one key, the delta modulo 2^bits. The sign's offset cancels in the difference.
template <class W>
struct IntegerWords {
  using Word = W;
  static constexpr int word_bits = 8 * sizeof(W);
  static constexpr int key_bits = 0;
  static constexpr unsigned n_keys = 1;

  static unsigned key(W) { return 0; }
  static W delta(W word, W base) { return W(word - base); }
  static W apply(W base, W delta) { return W(base + delta); }
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
