// The stride of a frame: how many digits at their end are zero in all of its words and their base's,
// as in floats that were of a shorter dtype before. Its differences are coded without them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/codec_interface.hpp"

namespace deltahub {

// A float keeps its exponent, an integer one digit.
template <class Words>
inline constexpr unsigned max_stride =
    unsigned(Words::exponent_bits > 0 ? Words::mantissa_bits : Words::word_bits - 1);

template <class Words>
inline constexpr auto stride_mask = [](unsigned stride) {
  return typename Words::Word((typename Words::Word(1) << stride) - 1);
};

// Zero, too, where all words are. Most frames say so with their first words.
template <class Words>
unsigned common_stride(View source, View base) {
  using Word = typename Words::Word;
  constexpr std::size_t piece = 256 * sizeof(Word);
  Word digits = 0;
  for (std::size_t begin = 0; begin < source.size(); begin += piece) {
    const std::size_t end = std::min(begin + piece, source.size());
    for (std::size_t at = begin; at < end; at += sizeof(Word))
      digits |= load<Word>(source.data() + at) | load<Word>(base.data() + at);
    if (digits & 1) return 0;
  }
  return digits == 0 ? 0 : std::min(unsigned(std::countr_zero(digits)), max_stride<Words>);
}

// Words without their sign rounded to multiples of 2^stride, to nearest, ties to even.
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

// Differences between words that are such multiples, without the digits at their end; and back.
template <class Words>
void divide_by_stride(typename Words::Word* deltas, std::size_t n, unsigned stride) {
  using Signed = std::make_signed_t<typename Words::Word>;
  for (std::size_t j = 0; j < n; ++j)
    deltas[j] = typename Words::Word(Signed(deltas[j]) >> stride);
}

}  // namespace deltahub
