// A word is the bit pattern of one element. Exponent and mantissa widths are known at run time
// only, so that one kernel serves all types of a width.
#pragma once

#include "frames.cuh"
#include "types.cuh"

namespace deltahub {

template <class Word>
constexpr u32 word_bits = 8 * sizeof(Word);
template <class Word>
constexpr Word top_bit = Word(Word(1) << (word_bits<Word> - 1));

// The n lowest bits set, n < the bits of a word.
template <class Word>
__device__ inline Word low_bits(u32 n) {
  return Word(Word(Word(1) << n) - 1);
}

// All ones if the highest bit of a word is set, else zero.
template <class Word>
__device__ inline Word spread_top_bit(Word word) {
  return Word(Word(0) - Word(word >> (word_bits<Word> - 1)));
}

// The word of a value as neuzip_lossless codes it: leading bits, sign, then n_low mantissa bits.
template <class Word>
__device__ inline Word joined(Word value, u32 n_low) {
  const Word low = low_bits<Word>(n_low);
  const Word sign = Word(Word(value << (word_bits<Word> - 1 - n_low)) & top_bit<Word>);
  return Word(sign | (value & low) | (Word(value >> 1) & Word(~low)));
}

// The word to which a difference leads; see codecs/spec/fm_delta.md. A float's difference counts
// representable numbers, away from zero.
template <class Word>
__device__ inline Word moved(const Frame& frame, Word base, Word difference) {
  if (frame.exponent_bits == 0) return Word(base + difference);
  constexpr Word low = Word(top_bit<Word> - 1);
  const Word count = Word((base & low) + difference);
  return Word(count ^ (spread_top_bit(count) & low) ^ (base & top_bit<Word>));
}

template <class Word>
__device__ inline u32 exponent_of(const Frame& frame, Word word) {
  return u32(word >> frame.mantissa_bits) & low_mask(frame.exponent_bits);
}

// The magnitude of a word rounded to a multiple of 2^zero_bits, to nearest, ties to even.
template <class Word>
__device__ inline Word rounded_to_zero_bits(const Frame& frame, Word word) {
  const Word sign = frame.exponent_bits > 0 ? top_bit<Word> : Word(0);
  const Word mask = low_bits<Word>(frame.zero_bits), magnitude = Word(word & Word(~sign));
  const Word is_odd = Word(word >> frame.zero_bits & 1);
  const Word rounded = Word(magnitude + Word(mask >> 1) + is_odd);
  return Word((rounded & Word(~sign) & Word(~mask)) | (word & sign));
}

}  // namespace deltahub
