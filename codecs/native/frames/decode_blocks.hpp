// Decodes a range of consecutive blocks of a frame: modes, guards and checksums.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <span>
#include <vector>

#include "base/parallel.hpp"
#include "frames/block_table.hpp"
#include "frames/delta_codec.hpp"
#include "frames/float_codec.hpp"
#include "kernels/codec_interface.hpp"
#include "kernels/dispatch.hpp"

namespace deltahub {

inline constexpr std::size_t guard_bytes = 4;

// The buffers of one block. stored: its stored bytes, or its stream without the guard.
struct Block {
  const std::uint8_t* stored;
  std::size_t length;
  const std::uint8_t* base;
  std::uint8_t* out;
  std::size_t size;
  NextBlock next = {};
};

// Why a block is damaged. The values are those of FAULT_* in the Python module.
enum class Fault : std::uint8_t { none = 0, guard = 1, stream = 2, other_bytes = 3 };

struct DecodeResult {
  std::size_t n_intact;  // blocks before the first damaged one
  Fault fault;
  bool operator==(const DecodeResult&) const = default;
};

struct BlockRange {
  std::span<const std::uint8_t> modes;
  std::span<const std::size_t> lengths;      // of stored bytes
  std::span<const std::size_t> sizes;        // of decoded bytes
  std::span<const std::uint64_t> checksums;  // of decoded bytes
  std::size_t first;                         // index of the first block in the frame
  std::size_t threads;

  // Blocks [first, end) of a frame. std::invalid_argument if the frame has no such blocks.
  static BlockRange of(const BlockTable& table, std::size_t first, std::size_t end,
                       std::size_t threads) {
    require(first < end && end <= table.n_blocks(), "no such blocks in the frame");
    const auto in_range = [=](const auto& values) {
      return std::span(values).subspan(first, end - first);
    };
    return {in_range(table.modes),
            in_range(table.lengths),
            in_range(table.sizes),
            in_range(table.checksums),
            first,
            threads};
  }

  // std::invalid_argument unless the blocks fill buffers of these sizes exactly.
  void check(std::size_t payload_size, std::size_t base_size, std::size_t out_size) const {
    require(lengths.size() == modes.size() && sizes.size() == modes.size() &&
                checksums.size() == modes.size(),
            "a mode, a length, a size and a checksum for each block");
    std::size_t stored_left = payload_size, out_left = out_size;
    for (std::size_t i = 0; i < modes.size(); ++i) {
      require(sizes[i] > 0, "a block without words");
      require(lengths[i] <= stored_left && sizes[i] <= out_left, "blocks longer than their bytes");
      stored_left -= lengths[i];
      out_left -= sizes[i];
      const auto mode = BlockMode(modes[i]);
      const bool is_valid =
          mode == BlockMode::raw         ? lengths[i] == sizes[i]
          : mode == BlockMode::unchanged ? lengths[i] == 0 && base_size == out_size
                                         : mode == BlockMode::coded;
      require(is_valid, "a block of such a mode has another length");
    }
    require(stored_left == 0 && out_left == 0, "more bytes than blocks");
    require(base_size == 0 || base_size == out_size, "a base of another size");
  }

  // Decodes all blocks of the range. Coded blocks are decoded by coded.decode(i, block, seed), or
  // in pairs by coded.decode_two(i, blocks, seed): blocks i and i + 1 with seeds
  // `seed` and `seed + 1`. base: null if the frame has no base.
  template <class Coded>
  DecodeResult decode(const std::uint8_t* payload, const std::uint8_t* base, std::uint8_t* out,
                      const Coded& coded) const {
    std::vector<Block> blocks;
    blocks.reserve(modes.size());
    for (std::size_t i = 0; i < modes.size(); ++i) {
      blocks.push_back({payload, lengths[i], base, out, sizes[i]});
      payload += lengths[i];
      out += sizes[i];
      if (base != nullptr) base += sizes[i];
    }
    const std::vector<std::size_t> starts = task_starts(blocks);
    // The task that a thread takes next if all threads are equally fast; its blocks are prefetched.
    const std::size_t n_tasks_ahead = std::clamp<std::size_t>(threads, 1, starts.size());
    for (std::size_t task = 0; task + n_tasks_ahead + 1 < starts.size(); ++task)
      for (std::size_t i = starts[task]; i < starts[task + 1]; ++i) {
        const std::size_t next = starts[task + n_tasks_ahead] + (i - starts[task]);
        if (next < starts[task + n_tasks_ahead + 1])
          blocks[i].next.bytes = {blocks[next].stored, blocks[next].length};
      }
    std::mutex mutex;
    DecodeResult result{modes.size(), Fault::none};
    const auto report = [&](std::size_t i, Fault fault) {
      if (fault == Fault::none) return true;
      const std::lock_guard lock(mutex);
      if (i < result.n_intact) result = {i, fault};
      return false;
    };
    for_each_block(starts.size() - 1, threads, [&](std::size_t task) {
      const std::size_t i = starts[task];
      if (starts[task + 1] - i == 1) return report(i, fault_of(i, blocks[i], coded));
      const auto faults = faults_of_two(i, {blocks[i], blocks[i + 1]}, coded);
      return report(i, faults[0]) && report(i + 1, faults[1]);
    });
    return result;
  }

 private:
  // Divides the blocks into tasks of one block or two: returns the first block of each task, then
  // the number of blocks. Two coded blocks decode faster together, but separately if there are so
  // few blocks that threads would be idle.
  std::vector<std::size_t> task_starts(const std::vector<Block>& blocks) const {
    const auto is_coded = [&](std::size_t i) { return BlockMode(modes[i]) == BlockMode::coded; };
    const bool uses_pairs = blocks.size() / 2 >= threads;
    std::vector<std::size_t> starts{0};
    starts.reserve(blocks.size() + 1);
    while (starts.back() < blocks.size()) {
      const std::size_t i = starts.back();
      const bool is_pair = uses_pairs && i + 1 < blocks.size() && is_coded(i) && is_coded(i + 1);
      starts.push_back(i + 1 + is_pair);
    }
    return starts;
  }

  static bool is_guarded(const Block& block) {
    if (block.length <= guard_bytes) return false;
    const Block stream = without_guard(block);
    return std::uint32_t(checksum_of(*chosen_kernels(), stream.stored, stream.length, 0)) ==
           load<std::uint32_t>(block.stored);
  }
  static Block without_guard(Block block) {
    block.stored += guard_bytes;
    block.length -= guard_bytes;
    return block;
  }

  Fault checksum_fault(std::size_t i, std::uint64_t checksum) const {
    return checksum == checksums[i] ? Fault::none : Fault::other_bytes;
  }
  Fault coded_fault(std::size_t i, const DecodedBlock& decoded) const {
    return decoded.is_sound ? checksum_fault(i, decoded.checksum) : Fault::stream;
  }

  template <class Coded>
  Fault fault_of(std::size_t i, const Block& block, const Coded& coded) const {
    switch (BlockMode(modes[i])) {
      case BlockMode::unchanged:
        if (block.base == nullptr) return Fault::stream;  // cannot occur: check() refuses it
        std::memcpy(block.out, block.base, block.size);
        break;
      case BlockMode::raw: std::memcpy(block.out, block.stored, block.size); break;
      case BlockMode::coded:
        if (!is_guarded(block)) return Fault::guard;
        return coded_fault(i, coded.decode(i, without_guard(block), first + i));
    }
    return checksum_fault(i, checksum_of(*chosen_kernels(), block.out, block.size, first + i));
  }

  template <class Coded>
  std::array<Fault, 2> faults_of_two(std::size_t i, const std::array<Block, 2>& blocks,
                                     const Coded& coded) const {
    if (!is_guarded(blocks[0]))
      return {Fault::guard, Fault::none};  // only the first fault is reported
    if (!is_guarded(blocks[1])) return {fault_of(i, blocks[0], coded), Fault::guard};
    const auto decoded =
        coded.decode_two(i, {without_guard(blocks[0]), without_guard(blocks[1])}, first + i);
    return {coded_fault(i, decoded[0]), coded_fault(i + 1, decoded[1])};
  }
};

// Decodes blocks of an fm_delta frame into `out`. parts: see BlockLayout. std::invalid_argument if
// sizes do not match.
inline DecodeResult decode_range(const DeltaDecoder& decoder, std::size_t parts,
                                 const BlockRange& range, View payload, View base,
                                 std::span<std::uint8_t> out) {
  // check() accepts a missing base, which coded blocks would read.
  require(base.size() == out.size(), "a base of another size");
  range.check(payload.size(), base.size(), out.size());
  std::vector<BlockShape> shapes(range.sizes.size());
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    if (BlockMode(range.modes[i]) != BlockMode::coded) continue;
    const BlockShape at = shapes[i] = decoder.shape_of(range.first + i, parts, range.sizes[i]);
    decoder.check_block(range.sizes[i], range.sizes[i], 0, at.first_column, at.rows, at.columns);
  }
  struct {
    const DeltaDecoder& decoder;
    const std::vector<BlockShape>& shapes;

    static CodedBlock coded(const Block& at, std::uint64_t seed) {
      return {at.stored, at.length, at.base, at.out, seed, at.next};
    }
    DecodedBlock decode(std::size_t i, const Block& at, std::uint64_t seed) const {
      return decoder.decode(coded(at, seed), shapes[i]);
    }
    std::array<DecodedBlock, 2> decode_two(std::size_t i, const std::array<Block, 2>& at,
                                           std::uint64_t seed) const {
      return decoder.decode_two({coded(at[0], seed), coded(at[1], seed + 1)},
                                {shapes[i], shapes[i + 1]});
    }
  } const coded{decoder, shapes};
  return range.decode(payload.data(), base.data(), out.data(), coded);
}

// Decodes blocks of a frame of a codec that has no coded blocks; a coded block has Fault::stream.
inline DecodeResult decode_range(const BlockRange& range, View payload, View base,
                                 std::span<std::uint8_t> out) {
  range.check(payload.size(), base.size(), out.size());
  struct {
    static DecodedBlock decode(std::size_t, const Block&, std::uint64_t) { return {}; }
    static std::array<DecodedBlock, 2> decode_two(std::size_t, const std::array<Block, 2>&,
                                                  std::uint64_t) {
      return {};
    }
  } const coded;
  return range.decode(payload.data(), base.empty() ? nullptr : base.data(), out.data(), coded);
}

// Decodes blocks of a neuzip_lossless frame, which has no base.
inline DecodeResult decode_range(const FloatDecoder& decoder, const BlockRange& range, View payload,
                                 std::span<std::uint8_t> out) {
  range.check(payload.size(), 0, out.size());
  for (std::size_t i = 0; i < range.sizes.size(); ++i)
    require(
        BlockMode(range.modes[i]) != BlockMode::coded || range.sizes[i] % decoder.word_bytes == 0,
        "a block that is not a whole number of words");
  struct {
    const FloatDecoder& decoder;

    static CodedFloats coded(const Block& at, std::uint64_t seed) {
      return {{at.stored, at.length}, {at.out, at.size}, seed, at.next};
    }
    DecodedBlock decode(std::size_t, const Block& at, std::uint64_t seed) const {
      return decoder.decode(coded(at, seed));
    }
    std::array<DecodedBlock, 2> decode_two(std::size_t, const std::array<Block, 2>& at,
                                           std::uint64_t seed) const {
      return decoder.decode_two({coded(at[0], seed), coded(at[1], seed + 1)});
    }
  } const coded{decoder};
  return range.decode(payload.data(), nullptr, out.data(), coded);
}

}  // namespace deltahub
