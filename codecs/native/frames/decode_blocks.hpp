// Blocks of a frame that follow each other: their modes, guards and checksums.
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

// One block: stored (behind its guard, if it is coded) and decoded.
struct Block {
  const std::uint8_t* stored;
  std::size_t length;
  const std::uint8_t* base;
  std::uint8_t* out;
  std::size_t size;
  NextBlock next = {};
};

// What is wrong with a block that does not decode to what it did when it was written.
enum class Fault : std::uint8_t { none = 0, guard = 1, stream = 2, other_bytes = 3 };

struct Found {
  std::size_t n_intact;  // blocks before the first one with a fault
  Fault fault;
  bool operator==(const Found&) const = default;
};

struct BlockRun {
  std::span<const std::uint8_t> modes;
  std::span<const std::size_t> lengths;      // of stored bytes
  std::span<const std::size_t> sizes;        // of decoded bytes
  std::span<const std::uint64_t> checksums;  // of decoded bytes
  std::size_t first;                         // the first block's index in its frame
  std::size_t threads;

  // Blocks [first, end) of a frame. std::invalid_argument where it has no such blocks.
  static BlockRun of(const BlockTable& table, std::size_t first, std::size_t end,
                     std::size_t threads) {
    require(first < end && end <= table.n_blocks(), "no such blocks in the frame");
    const auto some = [=](const auto& all) { return std::span(all).subspan(first, end - first); };
    return {some(table.modes), some(table.lengths), some(table.sizes), some(table.checksums),
            first,             threads};
  }

  // std::invalid_argument unless `decode` stays within these buffers.
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

  // coded.decode(i, block, seed): what it decodes to; coded.decode_two(i, blocks, seed): the same of
  // blocks i and i + 1, the second of which has the next seed. `base` may be null where there is none.
  template <class Coded>
  Found decode(const std::uint8_t* payload, const std::uint8_t* base, std::uint8_t* out,
               const Coded& coded) const {
    std::vector<Block> blocks;
    blocks.reserve(modes.size());
    for (std::size_t i = 0; i < modes.size(); ++i) {
      blocks.push_back({payload, lengths[i], base, out, sizes[i]});
      payload += lengths[i];
      out += sizes[i];
      if (base != nullptr) base += sizes[i];
    }
    const std::vector<std::size_t> starts = in_turn(blocks);
    // What a thread takes next, as long as all are equally fast.
    const std::size_t ahead = std::clamp<std::size_t>(threads, 1, starts.size());
    for (std::size_t task = 0; task + ahead + 1 < starts.size(); ++task)
      for (std::size_t i = starts[task]; i < starts[task + 1]; ++i) {
        const std::size_t next = starts[task + ahead] + (i - starts[task]);
        if (next < starts[task + ahead + 1])
          blocks[i].next.bytes = {blocks[next].stored, blocks[next].length};
      }
    std::mutex mutex;
    Found found{modes.size(), Fault::none};
    const auto note = [&](std::size_t i, Fault fault) {
      if (fault == Fault::none) return true;
      const std::lock_guard lock(mutex);
      if (i < found.n_intact) found = {i, fault};
      return false;
    };
    for_each_block(starts.size() - 1, threads, [&](std::size_t task) {
      const std::size_t i = starts[task];
      if (starts[task + 1] - i == 1) return note(i, fault_of(i, blocks[i], coded));
      const auto faults = faults_of_two(i, {blocks[i], blocks[i + 1]}, coded);
      return note(i, faults[0]) && note(i + 1, faults[1]);
    });
    return found;
  }

 private:
  // Where each block begins that is decoded by itself, or each two that are decoded together, and
  // the end. Two coded ones are faster together, but while threads lack work each of these takes its
  // own.
  std::vector<std::size_t> in_turn(const std::vector<Block>& blocks) const {
    const auto is_coded = [&](std::size_t i) { return BlockMode(modes[i]) == BlockMode::coded; };
    const bool are_many = blocks.size() / 2 >= threads;
    std::vector<std::size_t> starts{0};
    starts.reserve(blocks.size() + 1);
    while (starts.back() < blocks.size()) {
      const std::size_t i = starts.back();
      const bool are_two = are_many && i + 1 < blocks.size() && is_coded(i) && is_coded(i + 1);
      starts.push_back(i + 1 + are_two);
    }
    return starts;
  }

  static bool is_guarded(const Block& block) {
    if (block.length <= guard_bytes) return false;
    const Block stream = behind_guard(block);
    return std::uint32_t(checksum_of(*chosen_kernels(), stream.stored, stream.length, 0)) ==
           load<std::uint32_t>(block.stored);
  }
  static Block behind_guard(Block block) {
    block.stored += guard_bytes;
    block.length -= guard_bytes;
    return block;
  }

  Fault of_words(std::size_t i, std::uint64_t checksum) const {
    return checksum == checksums[i] ? Fault::none : Fault::other_bytes;
  }
  Fault of_coded(std::size_t i, const DecodedBlock& decoded) const {
    return decoded.is_sound ? of_words(i, decoded.checksum) : Fault::stream;
  }

  template <class Coded>
  Fault fault_of(std::size_t i, const Block& block, const Coded& coded) const {
    switch (BlockMode(modes[i])) {
      case BlockMode::unchanged:
        if (block.base == nullptr) return Fault::stream;  // check() has refused it
        std::memcpy(block.out, block.base, block.size);
        break;
      case BlockMode::raw: std::memcpy(block.out, block.stored, block.size); break;
      case BlockMode::coded:
        if (!is_guarded(block)) return Fault::guard;
        return of_coded(i, coded.decode(i, behind_guard(block), first + i));
    }
    return of_words(i, checksum_of(*chosen_kernels(), block.out, block.size, first + i));
  }

  template <class Coded>
  std::array<Fault, 2> faults_of_two(std::size_t i, const std::array<Block, 2>& blocks,
                                     const Coded& coded) const {
    if (!is_guarded(blocks[0])) return {Fault::guard, Fault::none};  // the first one is named
    if (!is_guarded(blocks[1])) return {fault_of(i, blocks[0], coded), Fault::guard};
    const auto decoded =
        coded.decode_two(i, {behind_guard(blocks[0]), behind_guard(blocks[1])}, first + i);
    return {of_coded(i, decoded[0]), of_coded(i + 1, decoded[1])};
  }
};

// Fills `out` with the blocks of an fm_delta frame; a row of it has so many parts.
// std::invalid_argument where sizes do not fit each other.
inline Found decode_run(const DeltaDecoder& decoder, std::size_t parts, const BlockRun& run,
                        View payload, View base, std::span<std::uint8_t> out) {
  // Coded blocks read it, whatever their neighbours are.
  require(base.size() == out.size(), "a base of another size");
  run.check(payload.size(), base.size(), out.size());
  std::vector<BlockShape> shapes(run.sizes.size());
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    if (BlockMode(run.modes[i]) != BlockMode::coded) continue;
    const BlockShape at = shapes[i] = decoder.shape_of(run.first + i, parts, run.sizes[i]);
    decoder.check_block(run.sizes[i], run.sizes[i], 0, at.first_column, at.rows, at.columns);
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
  return run.decode(payload.data(), base.data(), out.data(), coded);
}

// The same of a frame in which no block is coded; a coded one is a fault of its stream.
inline Found decode_run(const BlockRun& run, View payload, View base,
                        std::span<std::uint8_t> out) {
  run.check(payload.size(), base.size(), out.size());
  struct {
    static DecodedBlock decode(std::size_t, const Block&, std::uint64_t) { return {}; }
    static std::array<DecodedBlock, 2> decode_two(std::size_t, const std::array<Block, 2>&,
                                                  std::uint64_t) {
      return {};
    }
  } const coded;
  return run.decode(payload.data(), base.empty() ? nullptr : base.data(), out.data(), coded);
}

// The same of a neuzip_lossless frame, which has no base.
inline Found decode_run(const FloatDecoder& decoder, const BlockRun& run, View payload,
                        std::span<std::uint8_t> out) {
  run.check(payload.size(), 0, out.size());
  for (std::size_t i = 0; i < run.sizes.size(); ++i)
    require(BlockMode(run.modes[i]) != BlockMode::coded || run.sizes[i] % decoder.word_bytes == 0,
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
  return run.decode(payload.data(), nullptr, out.data(), coded);
}

}  // namespace deltahub
