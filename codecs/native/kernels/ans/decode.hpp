// Decoding of a sequence of values: 32 interleaved tANS lanes in one stream.
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
constexpr std::size_t max_fast_bytes = 4;
#else
constexpr std::size_t max_fast_bytes = 2;
#endif

// Decodes COUNT values: as many as surely fit into one window of 57 bits (or one value of 64
// bits).
template <class Value, std::size_t COUNT, bool CHECKED>
inline void decode_values(const Entry* entries, BackwardBits& bits, std::uint32_t* states,
                          const std::uint16_t* contexts, std::uint8_t* out) {
  constexpr unsigned value_bits = 8 * sizeof(Value);
  Entry found[COUNT];
  unsigned raw_bits[COUNT];
  for (std::size_t k = 0; k < COUNT; ++k) {
    const Context context = contexts[k];
    found[k] = entries[(context & context_table_bits) + states[k]];
    raw_bits[k] = raw_bit_count(entry_width(found[k]), context_shift(context), value_bits);
    const unsigned all = entry_state_bits(found[k]) + raw_bits[k];
    if constexpr (CHECKED)
      bits.skip(all);
    else
      bits.skip_unchecked(all);
  }
  const auto peek = [&](unsigned offset) {
    return CHECKED ? bits.peek(offset) : bits.peek_unchecked(offset);
  };
  std::uint64_t window = peek(0);
  for (std::size_t k = COUNT; k-- > 0;) {  // the last value's bits are the lowest
    const unsigned state_bits = entry_state_bits(found[k]);
    states[k] = entry_next(found[k]) + std::uint32_t(window & low_masks[state_bits]);
    std::uint64_t raw;
    if constexpr (value_bits == 64)  // up to 63 raw bits: two windows
      raw = (peek(state_bits) & low_masks[32]) | peek(state_bits + 32) << 32;
    else
      raw = window >> state_bits;
    raw &= low_masks[raw_bits[k]];
    if constexpr (COUNT > 1) window >>= state_bits + raw_bits[k];
    const std::uint64_t high = std::uint64_t(std::int64_t(entry_mant(found[k]))) << raw_bits[k];
    store<Value>(out + k * sizeof(Value), Value(high + raw));
  }
}

// No round reads more bits than this, so that no round reads beyond the zeros before the tail.
constexpr std::size_t max_tail_bits = max_round_bits<std::uint64_t>;
constexpr std::size_t tail_begin = (max_tail_bits + 7) / 8;  // in bytes
static_assert(2 * tail_begin + 1 + 16 <= sizeof(DecoderState::tail));

// Whether the unread bits must now be copied to `tail`.
inline bool is_near_end(const DecoderState& stream, std::size_t position) {
  return !stream.is_in_tail && position < max_tail_bits;
}

inline BackwardBits bits_of(DecoderState& stream) {
  if (is_near_end(stream, stream.position)) {
    const std::size_t n = std::min(stream.size, stream.position / 8 + 1);
    std::copy_n(stream.bytes, n, stream.tail + tail_begin);
    stream.is_in_tail = true;
  }
  if (!stream.is_in_tail) return BackwardBits::resumed(stream.bytes, stream.size, stream.position);
  return BackwardBits::resumed(stream.tail, sizeof stream.tail, stream.position + 8 * tail_begin);
}

inline void store_state(DecoderState& stream, const BackwardBits& bits) {
  const std::size_t before = stream.is_in_tail ? 8 * tail_begin : 0;
  stream.is_sound = bits.is_sound() && bits.position() >= before;
  stream.position = stream.is_sound ? bits.position() - before : 0;
}

template <class Value>
void decode_symbols(DecoderState& stream, const Entry* entries, const std::uint16_t* contexts,
                    std::size_t n, std::uint8_t* out, PrefetchTargets targets) {
  constexpr std::size_t size = sizeof(Value);
  constexpr bool is_fast = size <= max_fast_bytes;
  constexpr std::size_t min_bits = [] {
    if constexpr (is_fast) return min_unread_bits<Value>;
    return max_round_bits<Value>;
  }();
  constexpr std::size_t values_per_window = size <= 2 ? 2 : 1;
  BackwardBits bits = bits_of(stream);
  std::uint32_t states[n_lanes];
  std::copy_n(stream.states, n_lanes, states);
  std::size_t i = 0;
  while (i + n_lanes <= n && bits.is_sound()) {
    if (bits.has_unread(min_bits)) {
      if constexpr (is_fast) {
        const std::size_t end =
            decode_rounds<Value>(entries, bits, states, contexts, out, i, n, targets);
        if (std::exchange(i, end) != end) continue;
      }
#pragma GCC unroll 16
      for (std::size_t lane = 0; lane < n_lanes; lane += values_per_window)
        decode_values<Value, values_per_window, false>(
            entries, bits, &states[lane], contexts + i + lane, out + (i + lane) * size);
    } else if (is_near_end(stream, bits.position())) {
      store_state(stream, bits);
      bits = bits_of(stream);
      continue;
    } else {
      for (std::size_t lane = 0; lane < n_lanes; ++lane)
        decode_values<Value, 1, true>(entries, bits, &states[lane], contexts + i + lane,
                                      out + (i + lane) * size);
    }
    i += n_lanes;
  }
  // The values after the last whole round. The sequences of low-rank factors are short, so that
  // these may be many of their values.
  const bool is_unchecked = bits.has_unread(max_round_bits<Value>);
  for (std::size_t lane = 0; i < n && bits.is_sound(); ++i, ++lane) {
    if (is_unchecked)
      decode_values<Value, 1, false>(entries, bits, &states[lane], contexts + i, out + i * size);
    else
      decode_values<Value, 1, true>(entries, bits, &states[lane], contexts + i, out + i * size);
  }
  std::copy_n(states, n_lanes, stream.states);
  store_state(stream, bits);
}

// Decodes two sequences of the same length with the same tables.
template <class Value>
void decode_two_streams(DecoderState* const (&streams)[2], const Entry* entries,
                        const std::uint16_t* const (&contexts)[2], std::size_t n,
                        std::uint8_t* const (&out)[2], const PrefetchTargets (&targets)[2]) {
  std::size_t done[2] = {0, 0};
#ifdef DELTAHUB_HAS_DECODE_TWO
  if constexpr (sizeof(Value) <= 4) {
    BackwardBits bits[2] = {bits_of(*streams[0]), bits_of(*streams[1])};
    std::uint32_t* const states[2] = {streams[0]->states, streams[1]->states};
    decode_rounds_of_two<Value>(entries, bits, states, contexts, out, n, done, targets);
    for (int s = 0; s < 2; ++s) store_state(*streams[s], bits[s]);
  }
#endif
  for (int s = 0; s < 2; ++s) {
    const std::size_t skipped = done[s] * sizeof(Value);
    if (!streams[s]->is_sound) continue;
    decode_symbols<Value>(*streams[s], entries, contexts[s] + done[s], n - done[s],
                          out[s] + skipped,
                          {targets[s].words + skipped, targets[s].base + skipped});
  }
}

}  // namespace
DELTAHUB_END
