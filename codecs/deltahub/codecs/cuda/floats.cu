// Decodes frames of neuzip_lossless, and frames without coded blocks of any codec. There is one
// kernel for each width of a word. See codecs/spec/neuzip_lossless.md.
#include "device/frames.cuh"
#include "device/group.cuh"
#include "device/lanes.cuh"
#include "device/tables.cuh"
#include "device/words.cuh"

namespace deltahub {

template <class Word>
struct Floats {
  __device__ static bool decode(const Frame& frame, const Block& block, const SharedMemory& shared,
                                u8* to, const u8*) {
    auto* const out = reinterpret_cast<Word*>(to);
    const u32 n = u32(block.size / sizeof(Word)), lane = lane_of_thread();
    Lanes lanes(shared.entries, frame.table_log, shared.ring, frame.stored + block.stored_begin,
                block.stored_size);
    const auto word_of = [&](Word value) {
      return joined<Word>(Word(value << frame.zero_bits), frame.n_low);
    };
    u32 first = 0;
    for (; first + n_lanes <= n && lanes.is_sound(); first += n_lanes)
      out[first + lane] = word_of(lanes.template decode<Word>(0, true));
    if (first < n && lanes.is_sound()) {
      const bool is_active = first + lane < n;
      const Word value = lanes.template decode<Word>(0, is_active);
      if (is_active) out[first + lane] = word_of(value);
    }
    return lanes.is_finished();
  }
};

}  // namespace deltahub

DELTAHUB_KERNEL(decode_floats_8, deltahub::Floats<deltahub::u8>)
DELTAHUB_KERNEL(decode_floats_16, deltahub::Floats<deltahub::u16>)
DELTAHUB_KERNEL(decode_floats_32, deltahub::Floats<deltahub::u32>)
DELTAHUB_KERNEL(decode_floats_64, deltahub::Floats<deltahub::u64>)
