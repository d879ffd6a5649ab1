// Reads the bits of a stream, from the last to the first, for the 32 lanes of a warp at once.
#pragma once

#include "types.cuh"

namespace deltahub {

// The words of a stream pass through a ring of two halves in shared memory. Each half is loaded
// from memory some rounds before it is needed, so that its latency passes while the warp decodes.
constexpr u32 words_a_half = 4 * n_lanes, ring_words = 2 * words_a_half;
constexpr u32 ring_bytes = 4 * ring_words;

// All lanes call each function together. A damaged stream may ask for bits below its first one:
// these are arbitrary, and no load leaves the stream's memory.
class StreamReader {
 public:
  // ring: ring_words words of shared memory that only this warp uses. bytes: at a multiple of 16;
  // the memory up to the next multiple of 16 after `size` bytes belongs to the same allocation.
  __device__ StreamReader(u32* ring, const u8* bytes, u32 size)
      : ring_(ring), chunks_(reinterpret_cast<const uint4*>(bytes)), n_chunks_((size + 15) / 16) {
    const u32 last = size > 0 ? bytes[size - 1] : 0;
    // The highest bit that is set marks the end. A stream without this bit is not sound.
    is_sound_ = last != 0;
    if (!is_sound_) return;
    position_ = i32(8 * (size - 1)) + 31 - __clz(i32(last));
    half_ = position_ / i32(32 * words_a_half) + 1;
    // A window may reach beyond the word with the marker; what it finds there is masked out.
    pending_ = loaded(half_ - 1);
    store_pending();
  }

  __device__ bool is_sound() const { return is_sound_ && position_ >= 0; }
  __device__ bool is_at_begin() const { return is_sound_ && position_ == 0; }

  // Makes the next n_bits readable; n_bits <= 32 * (words_a_half - 2).
  __device__ void prepare(i32 n_bits) {
    // Shifted, not divided: a position below the begin of the stream rounds down, too.
    if ((position_ - n_bits) >> 5 < half_ * i32(words_a_half)) store_pending();
  }

  // Each lane takes its next n_bits < 2^COUNT_BITS, lane 0 the highest ones. Returns the position
  // of the lane's lowest bit. The sums over lanes come from votes, which do not wait for each
  // other, as the steps of a prefix sum by shuffles would. Nothing waits for the shuffle of the
  // total until the next values' tables were read.
  template <u32 COUNT_BITS>
  __device__ i32 take(u32 n_bits) {
    const u32 up_to_lane = all_lanes >> (n_lanes - 1 - lane_of_thread());
    u32 up_to = 0;
#pragma unroll
    for (u32 bit = 0; bit < COUNT_BITS; ++bit) {
      const u32 votes = __ballot_sync(all_lanes, n_bits >> bit & 1);
      up_to += u32(__popc(votes & up_to_lane)) << bit;
    }
    const i32 at = position_ - i32(up_to);
    position_ = __shfl_sync(all_lanes, at, n_lanes - 1);
    return at;
  }

  // 32 bits from a position on.
  __device__ u32 window(i32 at) const {
    const u32 word = u32(at >> 5);
    return __funnelshift_r(ring_[word % ring_words], ring_[(word + 1) % ring_words], u32(at));
  }

 private:
  // Each lane's part of a half; zeros outside of the stream.
  __device__ uint4 loaded(i32 half) const {
    const i32 chunk = half * i32(n_lanes) + i32(lane_of_thread());
    return chunk >= 0 && u32(chunk) < n_chunks_ ? chunks_[chunk] : make_uint4(0, 0, 0, 0);
  }
  __device__ void store_pending() {
    __syncwarp();  // the other lanes have read what this overwrites
    --half_;
    reinterpret_cast<uint4*>(ring_)[u32(half_) % 2 * n_lanes + lane_of_thread()] = pending_;
    __syncwarp();  // the other lanes read it; votes alone would not order memory
    pending_ = loaded(half_ - 1);
  }

  u32* ring_;
  const uint4* chunks_;
  u32 n_chunks_;
  bool is_sound_;
  i32 position_ = 0;  // the number of unread bits
  i32 half_ = 0;      // the lowest half in the ring; the one below it is in `pending_`
  uint4 pending_;
};

}  // namespace deltahub
