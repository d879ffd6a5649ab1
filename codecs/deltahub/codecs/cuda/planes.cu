// The second step of an export: puts planes of mantissa bits into words that were decoded before,
// fills what a reader leaves out, and multiplies blocks by their scales. There is one kernel for
// each width of a word. See codecs/spec/neuzip.md, section 3.
#include "device/frames.cuh"
#include "device/planes.cuh"
#include "device/types.cuh"

namespace deltahub {

// A thread takes eight words at a time, which fill whole bytes of every plane. They are aligned
// for 16 bytes, so that they are loaded and stored by few instructions.
constexpr u32 n_words = 8;
template <class Word>
struct alignas(16) Words {
  Word at[n_words];
};

// The words from `first` on that a thread takes, all eight of them or those to the end.
template <class Word>
__device__ inline void load(const Word* from, u32 n, bool is_aligned, Words<Word>& words) {
  if (is_aligned && n == n_words) {
    words = *reinterpret_cast<const Words<Word>*>(from);
    return;
  }
#pragma unroll
  for (u32 i = 0; i < n_words; ++i) words.at[i] = i < n ? from[i] : Word(0);
}
template <class Word>
__device__ inline void store(const Words<Word>& words, u32 n, bool is_aligned, Word* to) {
  if (is_aligned && n == n_words) {
    *reinterpret_cast<Words<Word>*>(to) = words;
    return;
  }
#pragma unroll
  for (u32 i = 0; i < n_words; ++i)
    if (i < n) to[i] = words.at[i];
}

// Puts the bits of n words, at most eight, into them: no byte after the last word's is read.
template <class Word>
__device__ inline void join(const Plane& plane, u32 first, u32 n, Words<Word>& words) {
  const u8* packed = plane.bits + u64(first / n_words) * plane.width;
  const u32 mask = low_mask(plane.width);
  u32 bits = 0, n_held = 0;
#pragma unroll
  for (u32 i = 0; i < n_words; ++i) {
    if (i >= n) break;
    for (; n_held < plane.width; n_held += 8) bits |= u32(*packed++) << n_held;
    words.at[i] = Word(words.at[i] | Word((bits & mask) << plane.low));
    bits >>= plane.width;
    n_held -= plane.width;
  }
}

// A word times 1 + scale / 256, rounded once, ties to even, at most the largest finite number.
template <class Word, class Wide>
__device__ inline Word scaled(const Piece& piece, Word word, u32 scale) {
  const u32 m = piece.mantissa_bits;
  const Word sign = Word(word & (Word(1) << (8 * sizeof(Word) - 1)));
  const Wide hidden = Wide(1) << m;
  const u32 field = u32(word >> m) & low_mask(piece.exponent_bits);
  const Wide product = ((word & (hidden - 1)) + (field > 0 ? hidden : 0)) * (256 + scale);
  const u32 carry = product >> (m + 9) != 0 ? 1 : 0, n_dropped = 8 + carry;
  const Wide kept = product >> n_dropped, rest = product & ((Wide(1) << n_dropped) - 1);
  const Wide half = Wide(1) << (n_dropped - 1);
  const Wide up = rest > half || (rest == half && (kept & 1) != 0) ? 1 : 0;
  const Wide exponent = larger(field, 1u) - 1 + carry;
  const Wide largest = (Wide(low_mask(piece.exponent_bits)) << m) - 1;
  return Word(sign | Word(smaller(Wide((exponent << m) + kept + up), largest)));
}

// Wide: a type that holds the product of a significand and 256 + scale.
template <class Word, class Wide>
__device__ void join_planes(const Piece* pieces, const Plane* planes, const Group* groups,
                             const Target* targets) {
  const Group group = groups[blockIdx.x];
  const Piece piece = pieces[group.frame];
  auto* const all = reinterpret_cast<Word*>(targets[group.frame].out);
  const bool is_aligned = u64(all) % 16 == 0;
  const Word exponent = Word(Word(low_mask(piece.exponent_bits)) << piece.mantissa_bits);
  const u32 end = group.first + group.n;
  for (u32 first = group.first + n_words * threadIdx.x; first < end;
       first += n_words * blockDim.x) {
    const u32 n = smaller(n_words, end - first);
    Words<Word> words;
    load(all + first, n, is_aligned, words);
    for (u32 i = 0; i < piece.n_planes; ++i) join(planes[piece.first_plane + i], first, n, words);
    // A block has a multiple of eight words.
    const u32 scale = piece.scales == nullptr ? 0 : piece.scales[first >> piece.block_bits];
#pragma unroll
    for (u32 i = 0; i < n_words; ++i) {
      Word& word = words.at[i];
      if ((word & exponent) != 0) word = Word(word | Word(piece.fill));
      if (piece.scales != nullptr) word = scaled<Word, Wide>(piece, word, scale);
    }
    store(words, n, is_aligned, all + first);
  }
}

}  // namespace deltahub

#define DELTAHUB_JOINING_KERNEL(name, Word, Wide)                                                \
  extern "C" __global__ void name(                                                                \
      const deltahub::Piece* pieces, const deltahub::Plane* planes,                               \
      const deltahub::Group* groups, const deltahub::Target* targets, deltahub::u64*) {           \
    deltahub::join_planes<deltahub::Word, deltahub::Wide>(pieces, planes, groups, targets);      \
  }

DELTAHUB_JOINING_KERNEL(join_planes_16, u16, u32)
DELTAHUB_JOINING_KERNEL(join_planes_32, u32, u64)
