// The inner loops of neuzip exports: words rounded to fewer mantissa bits, block scales, and planes
// of mantissa bits. See codecs/spec/neuzip.md. All sets compute the same words, by integers and
// doubles whose every operation rounds once.
//
// Words are BF16, F16 or F32. M is the number of their mantissa bits. A block is `block` consecutive
// words; the last may be shorter. A block of scale t was divided by 1 + t / 256.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deltahub {

// F32, F16 and BF16, whose WordKinds follow each other.
inline constexpr int first_plane_kind = 1, n_plane_kinds = 3;

struct PlaneKernels {
  // Arrays are indexed by WordKind - first_plane_kind.

  // The scale of each block: the eight highest fraction bits of its largest magnitude.
  using Scales = void (*)(const std::uint8_t* words, std::size_t n, std::size_t block,
                          std::uint8_t* scales);
  Scales scales[n_plane_kinds];
  // Divides words by their block's scale, if there are scales, and rounds them once to `kept`
  // mantissa bits, ties to even, at most to the largest finite word. Words must be finite.
  using Round = void (*)(const std::uint8_t* words, std::size_t n, int kept,
                         const std::uint8_t* scales, std::size_t block, std::uint8_t* out);
  Round round[n_plane_kinds];
  // Packs the `width` mantissa bits of each word from bit `low` on, the first word lowest.
  using Pack = void (*)(const std::uint8_t* words, std::size_t n, int low, int width,
                        std::uint8_t* packed);
  Pack pack[n_plane_kinds];
  // Reverses `pack`: puts the bits into words where these are zero. n: a multiple of 8, or the
  // words to the end.
  using Join = void (*)(const std::uint8_t* packed, std::size_t n, int low, int width,
                        std::uint8_t* words);
  Join join[n_plane_kinds];
  // Sets the bits `fill` in words whose exponent field is not 0: the middle of the interval that a
  // word without its lower bits stands for.
  using Center = void (*)(std::uint8_t* words, std::size_t n, std::uint32_t fill);
  Center center[n_plane_kinds];
  // Multiplies words by their block's scale; rounds once, ties to even.
  using Scale = void (*)(std::uint8_t* words, std::size_t n, const std::uint8_t* scales,
                         std::size_t block);
  Scale scale[n_plane_kinds];
};

// Words that one call of `pack`, `join`, `center` or `scale` takes: they stay in the cache.
inline constexpr std::size_t plane_step = 4096;

extern const PlaneKernels portable_planes;
#ifdef __x86_64__
extern const PlaneKernels avx2_planes, avx512_planes;
#endif

}  // namespace deltahub
