// The inner loops of EMR-Merging and of the codec masks, one set for each instruction set. All sets
// compute the same numbers: in doubles, each operation rounded once, in a fixed order.
//
// A task's element is masked if it lies on the same side of the base as the unified element. The
// masked element of scale s is the unified word itself for s = 1, else base + s * (unified - base),
// rounded to the nearest word, ties to even. Words must be those of floats.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace deltahub {

// Sums over elements, for one task. tau: task - base; uni: unified - base where masked, else 0.
struct MergeSums {
  double tau_l1 = 0, uni_l1 = 0;             // of |tau|, of |uni|
  double product = 0;                        // of tau * uni
  double uni_l2 = 0, tau_l2 = 0;             // of squares
  std::uint64_t n_masked = 0, n_changed = 0;  // elements that are masked; whose tau is not 0
};

// The kinds of words that are floats come first.
inline constexpr std::size_t n_float_kinds = 6;

struct MaskKernels {
  // Arrays are indexed by WordKind.

  // Words as doubles, which is exact, and doubles rounded to the nearest words, ties to even.
  using Widen = void (*)(const std::uint8_t* words, std::size_t n, double* values);
  Widen widen[n_float_kinds];
  using Narrow = void (*)(const double* values, std::size_t n, std::uint8_t* words);
  Narrow narrow[n_float_kinds];
  // Words that are infinite or NaN.
  using CountInfinite = std::size_t (*)(const std::uint8_t* words, std::size_t n);
  CountInfinite count_infinite[n_float_kinds];
  // The unified words of n finite words, at most merge_step: the largest of the base's and the
  // tasks' where the sum of all tau is positive, else the smallest.
  using Elect = void (*)(const std::uint8_t* base, const std::uint8_t* const* tasks,
                         std::size_t n_tasks, std::size_t n, std::uint8_t* unified);
  Elect elect[n_float_kinds];
  // Adds n elements of a task, at most merge_step, to its sums.
  using AddSums = void (*)(const std::uint8_t* base, const std::uint8_t* unified,
                           const std::uint8_t* task, std::size_t n, MergeSums& sums);
  AddSums add_sums[n_float_kinds];
  // The task's elements after the merge: masked ones scaled, all others as the base has them.
  using Merge = void (*)(const std::uint8_t* base, const std::uint8_t* unified,
                         const std::uint8_t* task, double scale, std::size_t n, std::uint8_t* out);
  Merge merge[n_float_kinds];
  // An element is active if its base and unified words differ. bits: one bit for each active
  // element, the lowest of each byte first: whether words[j] is not base[j]. Returns the number of
  // active elements; std::size_t(-1) if words are neither the base's nor the scaled ones.
  using PackBits = std::size_t (*)(const std::uint8_t* base, const std::uint8_t* unified,
                                   const std::uint8_t* words, double scale, std::size_t n,
                                   std::uint8_t* bits);
  PackBits pack_bits[n_float_kinds];
  // Reverses pack_bits. Without bits, all active elements are masked. False unless there are
  // exactly n_bytes of bits, with zeros after the last.
  using Decode = bool (*)(const std::uint8_t* base, const std::uint8_t* unified,
                          const std::uint8_t* bits, std::size_t n_bytes, double scale,
                          std::size_t n, std::uint8_t* out);
  Decode decode[n_float_kinds];
};

// Elements that one call of elect or add_sums takes: their doubles stay in the cache.
inline constexpr std::size_t merge_step = 1024;

extern const MaskKernels portable_masks;
#ifdef __x86_64__
extern const MaskKernels avx2_masks, avx512_masks;
#endif

}  // namespace deltahub
