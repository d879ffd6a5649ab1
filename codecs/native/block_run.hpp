// Blocks of a frame that follow each other: their modes, guards and checksums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <span>
#include <vector>

#include "block_table.hpp"
#include "codec.hpp"
#include "delta_codec.hpp"
#include "dispatch.hpp"
#include "float_codec.hpp"
#include "parallel.hpp"

namespace deltahub {

inline constexpr std::size_t guard_bytes = 4;

// One block: stored (behind its guard, if it is coded) and decoded.
struct Block {
  const std::uint8_t* stored;
  std::size_t length;
  const std::uint8_t* base;
  std::uint8_t* out;
  std::size_t size;
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

  // decode_coded(i, block): whether it is one that an encoder wrote. `base` may be null where
  // there is none.
  template <class DecodeCoded>
  Found decode(const std::uint8_t* payload, const std::uint8_t* base, std::uint8_t* out,
               DecodeCoded&& decode_coded) const {
    std::vector<Block> blocks;
    blocks.reserve(modes.size());
    for (std::size_t i = 0; i < modes.size(); ++i) {
      blocks.push_back({payload, lengths[i], base, out, sizes[i]});
      payload += lengths[i];
      out += sizes[i];
      if (base != nullptr) base += sizes[i];
    }
    std::mutex mutex;
    Found found{modes.size(), Fault::none};
    for_each_block(modes.size(), threads, [&](std::size_t i) {
      const Fault fault = fault_of(i, blocks[i], decode_coded);
      if (fault == Fault::none) return true;
      const std::lock_guard lock(mutex);
      if (i < found.n_intact) found = {i, fault};
      return false;
    });
    return found;
  }

 private:
  template <class DecodeCoded>
  Fault fault_of(std::size_t i, Block block, DecodeCoded&& decode_coded) const {
    const auto checksum = chosen_kernels().load()->checksum;
    switch (BlockMode(modes[i])) {
      case BlockMode::unchanged:
        if (block.base == nullptr) return Fault::stream;  // check() has refused it
        std::memcpy(block.out, block.base, block.size);
        break;
      case BlockMode::raw: std::memcpy(block.out, block.stored, block.size); break;
      case BlockMode::coded: {
        if (block.length <= guard_bytes) return Fault::guard;
        const std::uint8_t* const guard = block.stored;
        block.stored += guard_bytes;
        block.length -= guard_bytes;
        if (std::uint32_t(checksum(block.stored, block.length, 0)) != load<std::uint32_t>(guard))
          return Fault::guard;
        if (!decode_coded(i, block)) return Fault::stream;
      }
    }
    const bool is_same = checksum(block.out, block.size, first + i) == checksums[i];
    return is_same ? Fault::none : Fault::other_bytes;
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
  return run.decode(payload.data(), base.data(), out.data(), [&](std::size_t i, const Block& at) {
    return decoder.decode(at.stored, at.length, at.base, at.out, shapes[i]);
  });
}

// The same of a frame in which no block is coded; a coded one is a fault of its stream.
inline Found decode_run(const BlockRun& run, View payload, View base,
                        std::span<std::uint8_t> out) {
  run.check(payload.size(), base.size(), out.size());
  return run.decode(payload.data(), base.empty() ? nullptr : base.data(), out.data(),
                    [](std::size_t, const Block&) { return false; });
}

// The same of a neuzip_lossless frame, which has no base.
inline Found decode_run(const FloatDecoder& decoder, const BlockRun& run, View payload,
                        std::span<std::uint8_t> out) {
  run.check(payload.size(), 0, out.size());
  for (std::size_t i = 0; i < run.sizes.size(); ++i)
    require(BlockMode(run.modes[i]) != BlockMode::coded || run.sizes[i] % decoder.word_bytes == 0,
            "a block that is not a whole number of words");
  return run.decode(payload.data(), nullptr, out.data(), [&](std::size_t, const Block& at) {
    return decoder.decode({at.stored, at.length}, at.out, at.size);
  });
}

}  // namespace deltahub
