// The 32 interleaved tANS lanes of a stream, a thread each. See codecs/spec/coder.md.
#pragma once

#include "frames.cuh"
#include "stream.cuh"
#include "types.cuh"

namespace deltahub {

constexpr u32 max_table_log = 10;

// A decoding entry, as codecs/native/kernels/ans/table_entries.hpp lays it out: next state 10
// bits, width 6, state bits 5, mant 11 (signed).
__device__ inline u32 entry_next(u32 entry) { return entry & low_mask(10); }
__device__ inline u32 entry_width(u32 entry) { return entry >> 10 & low_mask(6); }
__device__ inline u32 entry_state_bits(u32 entry) { return entry >> 16 & low_mask(5); }
__device__ inline i32 entry_mant(u32 entry) { return i32(entry) >> 21; }

// The most bits that a value takes, and the number of bits of this number.
template <class Value>
constexpr u32 max_value_bits = max_table_log + 8 * sizeof(Value) - 1;
template <class Value>
constexpr u32 count_bits = sizeof(Value) <= 2 ? 5 : sizeof(Value) == 4 ? 6 : 7;

class Lanes {
 public:
  // entries: the frame's tables, in shared memory.
  __device__ Lanes(const u32* entries, u32 table_log, u32* ring, const u8* stream, u32 size)
      : entries_(entries), in_(ring, stream, size) {
    if (!in_.is_sound()) return;
    in_.prepare(i32(n_lanes * max_table_log));
    state_ = in_.window(in_.template take<4>(table_log)) & low_mask(table_log);
  }

  __device__ bool is_sound() const { return in_.is_sound(); }
  // Whether every bit was read and every lane is in the state with which encoding began.
  __device__ bool is_finished() const {
    return in_.is_at_begin() && __ballot_sync(all_lanes, state_ != 0) == 0;
  }

  // Decodes the next value of each lane. A lane that is not active takes no bits and keeps its
  // state; its result is arbitrary.
  template <class Value>
  __device__ Value decode(u32 context, bool is_active) {
    in_.prepare(i32(n_lanes * max_value_bits<Value>));
    const u32 entry = entries_[table_begin(context) + state_];
    const u32 state_bits = entry_state_bits(entry);
    const u32 raw_bits =
        smaller(entry_width(entry) + shift_of(context), u32(8 * sizeof(Value) - 1));
    const i32 at = in_.template take<count_bits<Value>>(is_active ? state_bits + raw_bits : 0);
    const u32 window = in_.window(at);
    if (is_active) state_ = entry_next(entry) + (window & low_mask(state_bits));
    const i32 mant = entry_mant(entry);
    if constexpr (sizeof(Value) <= 2) {
      return Value(u32(mant) << raw_bits | (window >> state_bits & low_mask(raw_bits)));
    } else if constexpr (sizeof(Value) == 4) {
      const u32 raw = in_.window(at + i32(state_bits)) & low_mask(raw_bits);
      return Value(u32(mant) << raw_bits | raw);
    } else {
      const u64 low = in_.window(at + i32(state_bits));
      const u64 high = in_.window(at + i32(state_bits) + 32);
      return u64(i64(mant)) << raw_bits | ((high << 32 | low) & low_mask_64(raw_bits));
    }
  }

 private:
  const u32* entries_;
  StreamReader in_;
  u32 state_ = 0;
};

}  // namespace deltahub
