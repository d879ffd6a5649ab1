// The shared memory of a thread block: the frame's tables and classes, then a ring for each warp.
#pragma once

#include "frames.cuh"
#include "stream.cuh"
#include "types.cuh"

// Aligned for the widest loads. The host says its size at each launch.
extern __shared__ uint4 deltahub_shared_memory[];

namespace deltahub {

struct SharedMemory {
  u32* entries;
  u32* classes;
  u32* ring;  // of this warp

  // Loads the tables. Before their first use the threads must meet (__syncthreads).
  __device__ explicit SharedMemory(const Frame& frame)
      : entries(reinterpret_cast<u32*>(deltahub_shared_memory)),
        classes(entries + frame.n_entries),
        ring(classes + max_classes + warp_of_thread() * ring_words) {
    for (u32 i = threadIdx.x; i < frame.n_entries; i += blockDim.x) entries[i] = frame.entries[i];
    if (frame.classes != nullptr)
      for (u32 i = threadIdx.x; i < max_classes; i += blockDim.x) classes[i] = frame.classes[i];
  }
};

}  // namespace deltahub
