// Encoding of a sequence of numbers: the mirror of kernels/ans/decode.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/words.hpp"
#include "kernels/ans/bit_stream.hpp"
#include "kernels/ans/prefetch.hpp"
#include "kernels/ans/table_entries.hpp"
#include "kernels/kernels.hpp"

#ifdef __AVX2__
#include "kernels/ans/encode_avx2.hpp"
#endif
#ifdef __AVX512F__
#include "kernels/ans/encode_avx512.hpp"
#endif

DELTAHUB_BEGIN
namespace {

// COUNT numbers side by side, from the last to the first; nonzero where a table lacks one.
template <class Number, std::size_t COUNT>
inline std::uint32_t write_numbers(ForwardBits& bits, const Row* rows,
                                   const std::uint16_t* next_states, std::uint32_t* states,
                                   const std::uint16_t* contexts, const std::uint8_t* numbers,
                                   const std::uint16_t* places) {
  std::uint64_t pending = 0;
  unsigned n_pending = 0;
  std::uint32_t missing = 0;
  for (std::size_t k = COUNT; k-- > 0;) {
    const Row row = rows[places[k]];
    const unsigned raw = raw_digits(row.width, context_shift(contexts[k]), 8 * sizeof(Number));
    const unsigned digits = (states[k] + row.add_for_digits) >> 16;
    const std::uint64_t low = states[k] & low_masks[digits];
    const std::uint64_t rest = load<Number>(numbers + k * sizeof(Number)) & low_masks[raw];
    missing |= row.is_missing;
    states[k] = next_states[std::int64_t(states[k] >> digits) + row.first];
    if constexpr (sizeof(Number) == 8) {
      const unsigned n_low = std::min(raw, 32u);
      bits.put(low | (rest & low_masks[n_low]) << digits, digits + n_low);
      bits.put(rest >> n_low, raw - n_low);
    } else {
      pending |= (low | rest << digits) << n_pending;
      n_pending += digits + raw;
    }
  }
  if constexpr (sizeof(Number) != 8) bits.put(pending, n_pending);
  return missing;
}

template <class Number>
void write(WriterState& stream, const EncodingTables& tables, const std::uint16_t* contexts,
           const std::uint8_t* numbers, const std::uint16_t* places, std::size_t n, Ahead ahead) {
  constexpr std::size_t size = sizeof(Number);
  constexpr std::size_t together = size <= 2 ? 2 : 1;  // as one `put` surely takes
  const auto [rows, short_rows, next_states] = tables;
  ForwardBits bits(stream.at, stream.pending, stream.n_pending);
  std::uint32_t states[n_lanes], missing = 0;
  std::copy_n(stream.states, n_lanes, states);
  std::size_t i = n;
  while (i % n_lanes != 0) {
    --i;
    missing |= write_numbers<Number, 1>(bits, rows, next_states, &states[i % n_lanes], contexts + i,
                                        numbers + i * size, places + i);
  }
#ifdef DELTAHUB_HAS_SHORT_WRITE
  if constexpr (size <= 2) {
    fast_short_write<Number>(bits, short_rows, next_states, states, contexts, numbers, places, i,
                             ahead, missing);
    i = 0;
  }
#endif
#ifdef DELTAHUB_HAS_WRITE
  if constexpr (size <= 4) {
    fast_write<Number>(bits, rows, next_states, states, contexts, numbers, places, i, ahead,
                       missing);
    i = 0;
  }
#endif
  while (i > 0) {
    ask_for_round<Number>(ahead, i - n_lanes);
#pragma GCC unroll 16
    for (std::size_t lane = n_lanes; lane > 0;) {
      lane -= together, i -= together;
      missing |= write_numbers<Number, together>(bits, rows, next_states, &states[lane],
                                                 contexts + i, numbers + i * size, places + i);
    }
  }
  std::copy_n(states, n_lanes, stream.states);
  stream.at = bits.at();
  stream.pending = bits.pending();
  stream.n_pending = bits.n_pending();
  stream.is_missing |= missing;
}

}  // namespace
DELTAHUB_END
