// What all decoding kernels share: a thread block loads the tables of one frame, and each of its
// warps decodes one block.
#pragma once

#include "copy.cuh"
#include "frames.cuh"
#include "tables.cuh"
#include "types.cuh"

namespace deltahub {

// Coded::decode(frame, block, shared, out, base) decodes a coded block, and returns whether an
// encoder writes such a block. base: null if the frame has none.
template <class Coded>
__device__ void decode_group(const Frame* frames, const Block* blocks, const Group* groups,
                             const Target* targets, u64* status) {
  const Group group = groups[blockIdx.x];
  // Copies: the compiler would load fields again after each store to the output.
  const Frame frame = frames[group.frame];
  const Target target = targets[group.frame];
  const SharedMemory shared(frame);
  __syncthreads();  // the tables are loaded
  if (warp_of_thread() >= group.n) return;
  const Block block = blocks[group.first + warp_of_thread()];
  u8* const out = target.out + block.begin;
  const u8* const base = target.base == nullptr ? nullptr : target.base + block.begin;
  bool is_sound = true;
  if (block.mode == mode_coded)
    is_sound = Coded::decode(frame, block, shared, out, base);
  else
    copy_bytes(out, block.mode == mode_raw ? frame.stored + block.stored_begin : base, block.size);
  if (!is_sound && lane_of_thread() == 0)
    report(status, group.frame, block.index, fault_stream);
}

}  // namespace deltahub

#define DELTAHUB_KERNEL(name, Coded)                                                              \
  extern "C" __global__ void name(                                                                \
      const deltahub::Frame* frames, const deltahub::Block* blocks,                               \
      const deltahub::Group* groups, const deltahub::Target* targets, deltahub::u64* status) {    \
    deltahub::decode_group<Coded>(frames, blocks, groups, targets, status);                       \
  }
