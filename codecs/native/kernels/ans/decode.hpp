// Decoding of a sequence of numbers: 32 interleaved tANS lanes over one stream.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/words.hpp"
#include "kernels/ans/bit_stream.hpp"
#include "kernels/ans/table_entries.hpp"
#include "kernels/kernels.hpp"

#if defined(__AVX512F__)
#include "kernels/ans/decode_avx512.hpp"
#elif defined(__AVX2__)
#include "kernels/ans/decode_avx2.hpp"
#else
#include "kernels/ans/decode_vectors.hpp"
#endif

DELTAHUB_BEGIN
namespace {

#ifdef __AVX2__
constexpr std::size_t most_fast_bytes = 4;
#else
constexpr std::size_t most_fast_bytes = 2;
#endif

// COUNT numbers whose digits one window of 57 bits surely holds (or one number of 64 bits).
template <class Number, std::size_t COUNT, bool CHECKED>
inline void read_numbers(const Entry* entries, BackwardBits& bits, std::uint32_t* states,
                         const std::uint16_t* contexts, std::uint8_t* out) {
  constexpr unsigned number_bits = 8 * sizeof(Number);
  Entry found[COUNT];
  unsigned raws[COUNT];
  for (std::size_t k = 0; k < COUNT; ++k) {
    const Context context = contexts[k];
    found[k] = entries[(context & context_table_bits) + states[k]];
    raws[k] = raw_digits(entry_width(found[k]), context_shift(context), number_bits);
    const unsigned all = entry_digits(found[k]) + raws[k];
    if constexpr (CHECKED)
      bits.skip(all);
    else
      bits.skip_unchecked(all);
  }
  const auto peek = [&](unsigned offset) {
    return CHECKED ? bits.peek(offset) : bits.peek_unchecked(offset);
  };
  std::uint64_t window = peek(0);
  for (std::size_t k = COUNT; k-- > 0;) {  // the last number's digits are the lowest
    const unsigned digits = entry_digits(found[k]);
    states[k] = entry_next(found[k]) + std::uint32_t(window & low_masks[digits]);
    std::uint64_t raw;
    if constexpr (number_bits == 64)  // up to 63 digits: two windows
      raw = (peek(digits) & low_masks[32]) | peek(digits + 32) << 32;
    else
      raw = window >> digits;
    raw &= low_masks[raws[k]];
    if constexpr (COUNT > 1) window >>= digits + raws[k];
    const std::uint64_t high = std::uint64_t(std::int64_t(entry_mant(found[k]))) << raws[k];
    store<Number>(out + k * sizeof(Number), Number(high + raw));
  }
}

// No round takes more digits than this, so that none reads beyond the zeros before the rest.
constexpr std::size_t most_rest_bits = most_round_digits<std::uint64_t>;
constexpr std::size_t rest_begin = (most_rest_bits + 7) / 8;  // in bytes
static_assert(2 * rest_begin + 1 + 16 <= sizeof(StreamState::rest));

// Whether what is left is to be read from the rest from here on.
inline bool is_near_end(const StreamState& stream, std::size_t position) {
  return !stream.is_in_rest && position < most_rest_bits;
}

inline BackwardBits bits_of(StreamState& stream) {
  if (is_near_end(stream, stream.position)) {
    const std::size_t n = std::min(stream.size, stream.position / 8 + 1);
    std::copy_n(stream.bytes, n, stream.rest + rest_begin);
    stream.is_in_rest = true;
  }
  if (!stream.is_in_rest)
    return BackwardBits::resumed(stream.bytes, stream.size, stream.position);
  return BackwardBits::resumed(stream.rest, sizeof stream.rest,
                               stream.position + 8 * rest_begin);
}

inline void leave(StreamState& stream, const BackwardBits& bits) {
  const std::size_t before = stream.is_in_rest ? 8 * rest_begin : 0;
  stream.is_sound = bits.is_sound() && bits.position() >= before;
  stream.position = stream.is_sound ? bits.position() - before : 0;
}

template <class Number>
void numbers(StreamState& stream, const Entry* entries, const std::uint16_t* contexts,
             std::size_t n, std::uint8_t* out, Ahead ahead) {
  constexpr std::size_t size = sizeof(Number);
  constexpr bool is_fast = size <= most_fast_bytes;
  constexpr std::size_t room = [] {
    if constexpr (is_fast) return fast_room<Number>;
    return most_round_digits<Number>;
  }();
  constexpr std::size_t together = size <= 2 ? 2 : 1;
  BackwardBits bits = bits_of(stream);
  std::uint32_t states[n_lanes];
  std::copy_n(stream.states, n_lanes, states);
  std::size_t i = 0;
  while (i + n_lanes <= n && bits.is_sound()) {
    if (bits.has_room(room)) {
      if constexpr (is_fast) {
        const std::size_t end =
            fast_numbers<Number>(entries, bits, states, contexts, out, i, n, ahead);
        if (std::exchange(i, end) != end) continue;
      }
#pragma GCC unroll 16
      for (std::size_t lane = 0; lane < n_lanes; lane += together)
        read_numbers<Number, together, false>(entries, bits, &states[lane], contexts + i + lane,
                                              out + (i + lane) * size);
    } else if (is_near_end(stream, bits.position())) {
      leave(stream, bits);
      bits = bits_of(stream);
      continue;
    } else {
      for (std::size_t lane = 0; lane < n_lanes; ++lane)
        read_numbers<Number, 1, true>(entries, bits, &states[lane], contexts + i + lane,
                                      out + (i + lane) * size);
    }
    i += n_lanes;
  }
  // What is no whole round. Factors' sequences are short, so that much of them may be.
  const bool is_roomy = bits.has_room(most_round_digits<Number>);
  for (std::size_t lane = 0; i < n && bits.is_sound(); ++i, ++lane) {
    if (is_roomy)
      read_numbers<Number, 1, false>(entries, bits, &states[lane], contexts + i, out + i * size);
    else
      read_numbers<Number, 1, true>(entries, bits, &states[lane], contexts + i, out + i * size);
  }
  std::copy_n(states, n_lanes, stream.states);
  leave(stream, bits);
}

// Two sequences of one length that are read by the same tables.
template <class Number>
void two_numbers(StreamState* const (&streams)[2], const Entry* entries,
                 const std::uint16_t* const (&contexts)[2], std::size_t n,
                 std::uint8_t* const (&out)[2], const Ahead (&ahead)[2]) {
  std::size_t done[2] = {0, 0};
#ifdef DELTAHUB_HAS_TWO_NUMBERS
  if constexpr (sizeof(Number) <= 4) {
    BackwardBits bits[2] = {bits_of(*streams[0]), bits_of(*streams[1])};
    std::uint32_t* const states[2] = {streams[0]->states, streams[1]->states};
    fast_two_numbers<Number>(entries, bits, states, contexts, out, n, done, ahead);
    for (int s = 0; s < 2; ++s) leave(*streams[s], bits[s]);
  }
#endif
  for (int s = 0; s < 2; ++s) {
    const std::size_t skipped = done[s] * sizeof(Number);
    if (!streams[s]->is_sound) continue;
    numbers<Number>(*streams[s], entries, contexts[s] + done[s], n - done[s], out[s] + skipped,
                    {ahead[s].words + skipped, ahead[s].base + skipped});
  }
}

}  // namespace
DELTAHUB_END
