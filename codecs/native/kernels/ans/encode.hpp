// Encoding of a sequence of values: the reverse of kernels/ans/decode.hpp.
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

// Encodes COUNT adjacent values, from the last to the first; nonzero if a table lacks a symbol and
// its escape.
template <class Value, std::size_t COUNT>
inline std::uint32_t encode_values(ForwardBits& bits, const EncodingRow* rows,
                                   const std::uint16_t* next_states, std::uint32_t* states,
                                   const std::uint16_t* contexts, const std::uint8_t* values,
                                   const std::uint16_t* row_indices) {
  std::uint64_t pending = 0;
  unsigned n_pending = 0;
  std::uint32_t missing = 0;
  for (std::size_t k = COUNT; k-- > 0;) {
    const EncodingRow row = rows[row_indices[k]];
    const unsigned raw = raw_bit_count(row.width, context_shift(contexts[k]), 8 * sizeof(Value));
    const unsigned state_bits = (states[k] + row.add_for_bits) >> 16;
    const std::uint64_t low = states[k] & low_masks[state_bits];
    const std::uint64_t raw_part = load<Value>(values + k * sizeof(Value)) & low_masks[raw];
    missing |= row.is_missing;
    states[k] = next_states[std::int64_t(states[k] >> state_bits) + row.next_offset];
    if constexpr (sizeof(Value) == 8) {
      const unsigned n_low = std::min(raw, 32u);
      bits.put(low | (raw_part & low_masks[n_low]) << state_bits, state_bits + n_low);
      bits.put(raw_part >> n_low, raw - n_low);
    } else {
      pending |= (low | raw_part << state_bits) << n_pending;
      n_pending += state_bits + raw;
    }
  }
  if constexpr (sizeof(Value) != 8) bits.put(pending, n_pending);
  return missing;
}

template <class Value>
void encode_symbols(EncoderState& stream, const EncodingTablesView& tables,
                    const std::uint16_t* contexts, const std::uint8_t* values,
                    const std::uint16_t* row_indices, std::size_t n, PrefetchTargets targets) {
  constexpr std::size_t size = sizeof(Value);
  // at most as many as fit into one `put`
  constexpr std::size_t values_per_put = size <= 2 ? 2 : 1;
  const auto [rows, packed_rows, next_states] = tables;
  ForwardBits bits(stream.at, stream.pending, stream.n_pending);
  std::uint32_t states[n_lanes], missing = 0;
  std::copy_n(stream.states, n_lanes, states);
  std::size_t i = n;
  while (i % n_lanes != 0) {
    --i;
    missing |= encode_values<Value, 1>(bits, rows, next_states, &states[i % n_lanes], contexts + i,
                                       values + i * size, row_indices + i);
  }
#ifdef DELTAHUB_HAS_ENCODE_PACKED
  if constexpr (size <= 2) {
    encode_packed_rounds<Value>(bits, packed_rows, next_states, states, contexts, values,
                                row_indices, i, targets, missing);
    i = 0;
  }
#endif
#ifdef DELTAHUB_HAS_ENCODE_ROUNDS
  if constexpr (size <= 4) {
    encode_rounds<Value>(bits, rows, next_states, states, contexts, values, row_indices, i, targets,
                         missing);
    i = 0;
  }
#endif
  while (i > 0) {
    prefetch_round<Value>(targets, i - n_lanes);
#pragma GCC unroll 16
    for (std::size_t lane = n_lanes; lane > 0;) {
      lane -= values_per_put, i -= values_per_put;
      missing |= encode_values<Value, values_per_put>(
          bits, rows, next_states, &states[lane], contexts + i, values + i * size, row_indices + i);
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
