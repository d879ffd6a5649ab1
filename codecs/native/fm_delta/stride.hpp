// The stride of a frame: the number of trailing zero bits that all words of the frame and of its
// base have in common. Floats converted from a shorter dtype have such bits. Differences are coded
// divided by 2^stride.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/codec_interface.hpp"

namespace deltahub {

// The stride never covers the exponent of a float, nor all bits of an integer.
template <class Words>
inline constexpr unsigned max_stride =
    unsigned(Words::exponent_bits > 0 ? Words::mantissa_bits : Words::word_bits - 1);

template <class Words>
inline constexpr auto stride_mask = [](unsigned stride) {
  return typename Words::Word((typename Words::Word(1) << stride) - 1);
};

// 0 also if all words are zero. In most frames the first words show that the stride is 0.
template <class Words>
unsigned common_stride(View source, View base) {
  using Word = typename Words::Word;
  constexpr std::size_t step = 256 * sizeof(Word);
  Word all_bits = 0;
  for (std::size_t begin = 0; begin < source.size(); begin += step) {
    const std::size_t end = std::min(begin + step, source.size());
    for (std::size_t at = begin; at < end; at += sizeof(Word))
      all_bits |= load<Word>(source.data() + at) | load<Word>(base.data() + at);
    if (all_bits & 1) return 0;
  }
  return all_bits == 0 ? 0 : std::min(unsigned(std::countr_zero(all_bits)), max_stride<Words>);
}

// Rounds the magnitudes of words to multiples of 2^stride, to nearest, ties to even.
template <class Words>
void round_to_stride(std::uint8_t* words, std::size_t n, unsigned stride) {
  using Word = typename Words::Word;
  constexpr Word sign = Word(Words::exponent_bits > 0 ? Word(1) << (Words::word_bits - 1) : 0);
  const Word mask = stride_mask<Words>(stride), below_half = Word(mask >> 1);
  for (std::size_t j = 0; j < n; ++j) {
    const Word word = load<Word>(words + j * sizeof(Word));
    const Word rounded = Word((word & Word(~sign)) + below_half + Word(word >> stride & 1));
    store<Word>(words + j * sizeof(Word),
                Word((rounded & Word(~sign) & Word(~mask)) | (word & sign)));
  }
}

// Divides differences, which are multiples of 2^stride, by it.
template <class Words>
void divide_by_stride(typename Words::Word* deltas, std::size_t n, unsigned stride) {
  using Signed = std::make_signed_t<typename Words::Word>;
  for (std::size_t j = 0; j < n; ++j)
    deltas[j] = typename Words::Word(Signed(deltas[j]) >> stride);
}

}  // namespace deltahub
