// Compares the decoded bytes of blocks with the checksums of their frame, a warp for each block.
#include "device/frames.cuh"
#include "device/tables.cuh"
#include "device/xxh3.cuh"

// Shared memory: secret_words words for each warp.
extern "C" __global__ void verify_checksums(
    const deltahub::Frame*, const deltahub::Block* blocks, const deltahub::Group* groups,
    const deltahub::Target* targets, deltahub::u64* status) {
  using namespace deltahub;
  const Group group = groups[blockIdx.x];
  if (warp_of_thread() >= group.n) return;
  const Block& block = blocks[group.first + warp_of_thread()];
  u64* const secret =
      reinterpret_cast<u64*>(deltahub_shared_memory) + warp_of_thread() * secret_words;
  const u8* const decoded = targets[group.frame].out + block.begin;
  const u64 checksum = checksum_of(decoded, block.size, block.index, secret);
  if (lane_of_thread() == 0 && checksum != block.checksum)
    report(status, group.frame, block.index, fault_other_bytes);
}
