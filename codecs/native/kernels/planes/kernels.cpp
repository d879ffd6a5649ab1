// One set of kernels for neuzip exports. It is compiled once for each instruction set, as
// kernels/kernels.cpp.
#include "kernels/planes/kernels.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "base/vectors.hpp"
#include "base/words.hpp"
#include "kernels/masks/doubles.hpp"

DELTAHUB_BEGIN
namespace {

constexpr int scale_bits = 8;
constexpr unsigned scale_one = 1u << scale_bits;

template <class Words>
constexpr typename Words::Word magnitude_mask = typename Words::Word(Words::top - 1);

template <class Words>
void scales(const std::uint8_t* words, std::size_t n, std::size_t block, std::uint8_t* out) {
  using Word = typename Words::Word;
  constexpr int m = Words::mantissa_bits;
  for (std::size_t first = 0; first < n; first += block) {
    const std::size_t end = std::min(n, first + block);
    Word largest = 0;
    for (std::size_t i = first; i < end; ++i)
      largest = std::max(largest, Word(load<Word>(words + i * sizeof(Word)) & magnitude_mask<Words>));
    std::uint64_t significand = largest & low_masks[m];
    if (largest >> m)
      significand |= std::uint64_t(1) << m;
    else if (significand)  // subnormal: its leading bit becomes the hidden one
      significand <<= m + 1 - std::bit_width(significand);
    const std::uint64_t fraction = significand & low_masks[m];
    *out++ = std::uint8_t(m > scale_bits ? fraction >> (m > scale_bits ? m - scale_bits : 0)
                                         : fraction << (m > scale_bits ? 0 : scale_bits - m));
  }
}

template <class Words>
void round(const std::uint8_t* words, std::size_t n, int kept, const std::uint8_t* scales,
           std::size_t block, std::uint8_t* out) {
  using Word = typename Words::Word;
  const int dropped = Words::mantissa_bits - kept;
  const Word largest = Word((((Word(1) << Words::exponent_bits) - 1) << kept) - 1);
  for (std::size_t first = 0; first < n; first += block) {
    const std::size_t end = std::min(n, first + block);
    // No quotient of these lies so near the middle of two words that its double does not show on
    // which side it is: the words' significands and the divisor have too few bits for that.
    const double divisor = scales ? double(scale_one + scales[first / block]) / scale_one : 1;
    for (std::size_t i = first; i < end; ++i) {
      const Word word = load<Word>(words + i * sizeof(Word));
      const double quotient = widened<Words>(Word(word & magnitude_mask<Words>)) / divisor;
      const Word kept_bits = std::min(Word(rounded_magnitude<Words>(quotient, kept)), largest);
      store(out + i * sizeof(Word), Word(Word(word & Word(Words::top)) | Word(kept_bits << dropped)));
    }
  }
}

template <class Words>
void pack(const std::uint8_t* words, std::size_t n, int low, int width, std::uint8_t* packed) {
  using Word = typename Words::Word;
  std::uint64_t bits = 0;
  int held = 0;
  for (std::size_t i = 0; i < n; ++i) {
    bits |= ((std::uint64_t(load<Word>(words + i * sizeof(Word))) >> low) & low_masks[width]) << held;
    for (held += width; held >= 8; held -= 8, bits >>= 8) *packed++ = std::uint8_t(bits);
  }
  if (held > 0) *packed = std::uint8_t(bits);
}

// Words whose planes are joined eight at a time, by vectors: only where bytes of a vector can be
// put anywhere in one instruction.
#if defined(__SSSE3__) || defined(__ARM_NEON)
template <class Words>
constexpr bool has_vectors = Words::word_bits == 16;
#else
template <class Words>
constexpr bool has_vectors = false;
#endif

// Joins eight words at a time, as long as 16 bytes can be read; returns how many. Field j begins
// in byte width * j / 8; so two bytes hold it.
template <int width>
inline std::size_t join_vectors(const std::uint8_t* packed, std::size_t n, int low,
                                std::uint8_t* words) {
  constexpr auto byte = [](int j) { return width * j / 8; };
  // A product shifts each field to the top of its two bytes.
  constexpr auto shift = [](int j) { return std::uint16_t(1u << (16 - width - width * j % 8)); };
  constexpr Uint16x8 shifts = {shift(0), shift(1), shift(2), shift(3),
                               shift(4), shift(5), shift(6), shift(7)};
  const std::uint8_t* const end = packed + (n * width + 7) / 8;
  std::size_t i = 0;
  for (; i + 8 <= n && end - packed >= 16; i += 8, packed += width) {
    const auto bytes = load_vector<Uint8x16>(packed);
    const auto pairs = Uint16x8(__builtin_shufflevector(
        bytes, bytes, byte(0), byte(0) + 1, byte(1), byte(1) + 1, byte(2), byte(2) + 1, byte(3),
        byte(3) + 1, byte(4), byte(4) + 1, byte(5), byte(5) + 1, byte(6), byte(6) + 1, byte(7),
        byte(7) + 1));
    std::uint8_t* const at = words + 2 * i;
    store_vector(at, load_vector<Uint16x8>(at) | (pairs * shifts >> (16 - width)) << low);
  }
  return i;
}

// Eight fields fill `width` bytes.
template <class Words, int width>
void join_width(const std::uint8_t* packed, std::size_t n, int low, std::uint8_t* words) {
  using Word = typename Words::Word;
  if constexpr (has_vectors<Words>) {
    const std::size_t done = join_vectors<width>(packed, n, low, words);
    packed += done / 8 * width;
    words += done * sizeof(Word);
    n -= done;
  }
  using Wide = std::conditional_t<(width <= 4), std::uint32_t, std::uint64_t>;
  constexpr Wide mask = Wide((std::uint64_t(1) << width) - 1);
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8, packed += width) {
    Wide bits = 0;
    std::memcpy(&bits, packed, width);
    Word eight[8];
    std::memcpy(eight, words + i * sizeof(Word), sizeof eight);
    for (int j = 0; j < 8; ++j) eight[j] |= Word(Word(bits >> width * j & mask) << low);
    std::memcpy(words + i * sizeof(Word), eight, sizeof eight);
  }
  std::uint64_t rest = 0;
  if (i < n) std::memcpy(&rest, packed, ((n - i) * width + 7) / 8);
  for (; i < n; ++i, rest >>= width) {
    std::uint8_t* const at = words + i * sizeof(Word);
    store(at, Word(load<Word>(at) | Word(Word(rest & low_masks[width]) << low)));
  }
}

template <class Words>
void join(const std::uint8_t* packed, std::size_t n, int low, int width, std::uint8_t* words) {
  using Word = typename Words::Word;
  switch (width) {
    case 1: return join_width<Words, 1>(packed, n, low, words);
    case 2: return join_width<Words, 2>(packed, n, low, words);
    case 3: return join_width<Words, 3>(packed, n, low, words);
    case 4: return join_width<Words, 4>(packed, n, low, words);
    case 5: return join_width<Words, 5>(packed, n, low, words);
    case 6: return join_width<Words, 6>(packed, n, low, words);
    case 7: return join_width<Words, 7>(packed, n, low, words);
    default:
      std::uint64_t bits = 0;
      int held = 0;
      for (std::size_t i = 0; i < n; ++i) {
        for (; held < width; held += 8) bits |= std::uint64_t(*packed++) << held;
        std::uint8_t* const at = words + i * sizeof(Word);
        store(at, Word(load<Word>(at) | Word(Word(bits & low_masks[width]) << low)));
        bits >>= width;
        held -= width;
      }
  }
}

template <class Words>
void center(std::uint8_t* words, std::size_t n, std::uint32_t fill) {
  using Word = typename Words::Word;
  constexpr Word mantissa = Word((Word(1) << Words::mantissa_bits) - 1);
  constexpr Word exponent = Word(magnitude_mask<Words> & ~mantissa);
  for (std::size_t i = 0; i < n; ++i) {
    std::uint8_t* const at = words + i * sizeof(Word);
    const Word word = load<Word>(at);
    store(at, Word(word | ((word & exponent) != 0 ? Word(fill) : Word(0))));
  }
}

template <class Words>
using VectorOf = std::conditional_t<Words::word_bits == 16, Uint16xN, Uint32xN>;

// Words times 1 + scale / 256, rounded once, ties to even, at most to the largest finite word. In
// the width of a word, so that a vector holds as many as possible: in plain loops compilers widen
// 16 bits.
template <class Words>
inline VectorOf<Words> scaled(VectorOf<Words> words, typename Words::Word scale) {
  using Vector = VectorOf<Words>;
  using Word = typename Words::Word;
  // Old vector units compare signed integers alone.
  using Signed = decltype(Vector{} < Vector{});
  constexpr int m = Words::mantissa_bits;
  constexpr Word hidden = Word(Word(1) << m), top = Word(Words::top);
  constexpr Word infinity = Word(((Word(1) << Words::exponent_bits) - 1) << m);
  // A product with more bits than a word is taken in two parts: of the highest bits of the
  // significand, and of the `n_low` bits below.
  constexpr int n_low = std::max(m + 1 + scale_bits - Words::word_bits, 0);
  const Vector exponents = words & Word(top - hidden);
  const Vector normal = Vector(exponents != 0) & hidden;
  const Vector significands = (words & Word(hidden - 1)) | normal;
  // significand * (256 + scale) is whole * 256 + rest.
  const Vector low = (significands & Word((1u << n_low) - 1)) * scale;
  const Vector high = (significands >> n_low) * scale + (low >> n_low);
  const Vector whole = significands + (high >> (scale_bits - n_low));
  const Vector rest = (significands * scale) & Word(scale_one - 1);
  const Vector odd = whole & 1, half = whole >> 1;
  // `whole` has the hidden bit of a normal word, which adds 1 to the exponent field. A comparison
  // gives -1 where it holds.
  const Vector kept = exponents - normal + whole - Vector(Signed(rest + odd) > int(scale_one / 2));
  // Where the product passes the next power of two, one bit more is dropped.
  const Vector carried = exponents + half + (Vector(((half & 1) | rest) != 0) & odd);
  const Vector magnitudes = Signed(whole) >= int(2 * hidden) ? carried : kept;
  const Vector largest = Vector{} + Word(infinity - 1);
  return (words & top) | (magnitudes < largest ? magnitudes : largest);
}

template <class Words>
void scale(std::uint8_t* words, std::size_t n, const std::uint8_t* scales, std::size_t block) {
  using Vector = VectorOf<Words>;
  constexpr std::size_t size = Words::word_bits / 8, step = sizeof(Vector) / size;
  for (std::size_t first = 0; first < n; first += block) {
    const std::size_t end = std::min(n, first + block);
    const std::uint8_t scale = scales[first / block];
    std::size_t i = first;
    for (; i + step <= end; i += step) {
      std::uint8_t* const at = words + i * size;
      store_vector(at, scaled<Words>(load_vector<Vector>(at), scale));
    }
    if (i < end) {
      Vector rest{};
      std::memcpy(&rest, words + i * size, (end - i) * size);
      rest = scaled<Words>(rest, scale);
      std::memcpy(words + i * size, &rest, (end - i) * size);
    }
  }
}

}  // namespace
DELTAHUB_END

namespace deltahub {

#define DELTAHUB_PLANES_OF(isa) isa##_planes
#define DELTAHUB_PLANES(isa) DELTAHUB_PLANES_OF(isa)
#define DELTAHUB_OF_WORDS(kernel) {kernel<F32Words>, kernel<F16Words>, kernel<Bf16Words>}

const PlaneKernels DELTAHUB_PLANES(DELTAHUB_ISA) = {
    .scales = DELTAHUB_OF_WORDS(scales),
    .round = DELTAHUB_OF_WORDS(round),
    .pack = DELTAHUB_OF_WORDS(pack),
    .join = DELTAHUB_OF_WORDS(join),
    .center = DELTAHUB_OF_WORDS(center),
    .scale = DELTAHUB_OF_WORDS(scale),
};

}  // namespace deltahub
