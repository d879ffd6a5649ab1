// Decodes frames of fm_delta from a base on the device. There is one kernel for each width of a
// word. See codecs/spec/fm_delta.md.
#include "device/frames.cuh"
#include "device/group.cuh"
#include "device/lanes.cuh"
#include "device/prediction.cuh"
#include "device/tables.cuh"
#include "device/words.cuh"

namespace deltahub {

constexpr i32 scale_end = 8192;  // scales lie in [-scale_end, scale_end)

// The values that a block stores for its rows: a scale and a flag for each, then the left factors
// of each component.
struct RowValues {
  i16 *scales, *flags, *left;

  __device__ RowValues(const Frame& frame, const Block& block)
      : scales(frame.row_values + block.row_values),
        flags(scales + block.rows),
        left(flags + block.rows) {}
};

// Decodes one value for each row of a block; returns whether all of this lane are allowed.
template <class IsAllowed>
__device__ inline bool decode_rows(Lanes& lanes, u32 context, u32 zero_bits, u32 rows, i16* out,
                                   IsAllowed is_allowed) {
  bool all_allowed = true;
  for (u32 first = 0; first < rows && lanes.is_sound(); first += n_lanes) {
    const u32 row = first + lane_of_thread();
    const i16 value = i16(lanes.template decode<u16>(context, row < rows) << zero_bits);
    if (row >= rows) continue;
    out[row] = value;
    all_allowed = all_allowed && is_allowed(value);
  }
  return all_allowed;
}

// The row values at the begin of a stream; false if no encoder writes such values.
__device__ inline bool decode_row_values(Lanes& lanes, const Frame& frame, u32 rows,
                                         const RowValues& values) {
  const auto any = [](i16) { return true; };
  bool is_sound = true;
  if (frame.has_row_scales)
    is_sound = decode_rows(lanes, frame.row_scales, 0, rows, values.scales, [](i16 scale) {
      return scale >= -scale_end && scale < scale_end;
    });
  if (frame.decay_bits > 0)
    is_sound &= decode_rows(lanes, frame.flags, 0, rows, values.flags,
                            [](i16 flag) { return flag == 0 || flag == 1; });
  for (u32 k = 0; k < frame.rank; ++k)
    decode_rows(lanes, frame.left[k].context, frame.left[k].zero_bits, rows,
                values.left + u64(k) * rows, any);
  __syncwarp();  // other lanes read the values; votes alone would not order memory
  return __ballot_sync(all_lanes, !is_sound) == 0;
}

// A place in a block: a lane passes every 32nd word.
struct Place {
  u32 row, column;
  u32 rows_a_step, columns_a_step;

  __device__ explicit Place(u32 columns)
      : row(lane_of_thread() / columns),
        column(lane_of_thread() % columns),
        rows_a_step(n_lanes / columns),
        columns_a_step(n_lanes % columns) {}
  __device__ void advance(u32 columns) {
    row += rows_a_step;
    column += columns_a_step;
    if (column >= columns) column -= columns, ++row;
  }
};

// The word that is expected at a place, and the context of the difference from it.
template <class Word>
struct Expected {
  Word word = 0;
  u32 context = 0;
};

template <class Word>
__device__ inline Expected<Word> expected_at(const Frame& frame, const Block& block,
                                             const RowValues& rows, const u32* classes,
                                             const Place& place, Word base) {
  const u32 column = block.first_column + place.column;
  Word word = base;
  i32 z = frame.has_row_scales ? rows.scales[place.row] : 0;
  const bool is_decayed = frame.decay_bits > 0 && rows.flags[place.row] != 0;
  if (is_decayed) {
    const u32 below = frame.mantissa_bits - frame.decay_bits;
    const u64 step = u64(base >> below) & low_mask_64(frame.decay_bits);
    word = moved(frame, base, static_cast<const Word*>(frame.decay_steps)[step]);
  } else if constexpr (sizeof(Word) == 2 || sizeof(Word) == 4) {
    if (frame.rank > 0) {
      i32 product = product_of(rows.left + place.row, block.rows, frame.right + column,
                               frame.columns, frame.rank);
      if (frame.is_product_rounded) product = rounded_product(frame, product);
      word = predicted(frame, base, product);
    }
  }
  if (frame.zero_bits > 0 && (frame.decay_bits > 0 || frame.rank > 0))
    word = rounded_to_zero_bits(frame, word);
  if (!is_decayed) {
    z += frame.offset;
    if (frame.column_scales != nullptr) z += frame.column_scales[column];
    if (frame.exponent_bits > 0) z -= 4 * i32(larger(exponent_of(frame, word), 1u));
  }
  return {word, classes[limited(z, 0, frame.last_class)]};
}

// Decodes the differences of a block in steps of several rounds. The base of the next step is
// loaded before this step is decoded, so that the latency of memory passes meanwhile. A lane reads
// its base before it writes, so that `to` may be the same memory as `from`.
template <class Word>
__device__ bool decode_differences(const Frame& frame, const Block& block,
                                   const SharedMemory& shared, u8* to, const u8* from) {
  constexpr u32 rounds = 4, step = rounds * n_lanes;
  auto* const out = reinterpret_cast<Word*>(to);
  const auto* const base = reinterpret_cast<const Word*>(from);
  const u32 n = block.rows * block.columns, lane = lane_of_thread();
  const RowValues rows(frame, block);
  Lanes lanes(shared.entries, frame.table_log, shared.ring, frame.stored + block.stored_begin,
              block.stored_size);
  if (!decode_row_values(lanes, frame, block.rows, rows)) return false;
  Place place(block.columns);
  Word next[rounds];
  const auto load_base = [&](u32 first) {
#pragma unroll
    for (u32 i = 0; i < rounds; ++i) {
      const u64 at = u64(first) + i * n_lanes + lane;
      next[i] = at < n ? base[at] : Word(0);
    }
  };
  load_base(0);
  // is_whole: whether each lane has a word in each round. It is constant where this is inlined. It
  // is no template, because NVRTC takes generic lambdas for functions of the host.
  const auto decode_step = [&](u32 first, bool is_whole) {
    Expected<Word> expected[rounds];
#pragma unroll
    for (u32 i = 0; i < rounds; ++i) {
      if (is_whole || first + i * n_lanes + lane < n)
        expected[i] = expected_at(frame, block, rows, shared.classes, place, next[i]);
      place.advance(block.columns);
    }
    load_base(first + step);
#pragma unroll
    for (u32 i = 0; i < rounds; ++i) {
      if (!is_whole && first + i * n_lanes >= n) break;
      const u32 at = first + i * n_lanes + lane;
      const bool is_active = is_whole || at < n;
      const Word difference = lanes.template decode<Word>(expected[i].context, is_active);
      if (!is_active) continue;
      const Word word = moved(frame, expected[i].word, Word(difference << frame.zero_bits));
      out[at] = Word(word & Word(~low_bits<Word>(frame.zero_bits)));
    }
  };
  u32 first = 0;
  for (; first + step <= n && lanes.is_sound(); first += step) decode_step(first, true);
  if (first < n && lanes.is_sound()) decode_step(first, false);
  return lanes.is_finished();
}

template <class Word>
struct Differences {
  __device__ static bool decode(const Frame& frame, const Block& block, const SharedMemory& shared,
                                u8* out, const u8* base) {
    return decode_differences<Word>(frame, block, shared, out, base);
  }
};

}  // namespace deltahub

DELTAHUB_KERNEL(decode_fm_delta_8, deltahub::Differences<deltahub::u8>)
DELTAHUB_KERNEL(decode_fm_delta_16, deltahub::Differences<deltahub::u16>)
DELTAHUB_KERNEL(decode_fm_delta_32, deltahub::Differences<deltahub::u32>)
DELTAHUB_KERNEL(decode_fm_delta_64, deltahub::Differences<deltahub::u64>)
