// Encodes all blocks of a frame: modes, guards and checksums.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <stdexcept>
#include <vector>

#include "base/parallel.hpp"
#include "frames/block_layout.hpp"
#include "frames/decode_blocks.hpp"
#include "frames/delta_codec.hpp"
#include "frames/float_codec.hpp"
#include "kernels/codec_interface.hpp"
#include "kernels/dispatch.hpp"

namespace deltahub {

// The block table of encoded blocks. Their stored bytes are in the buffer of the caller,
// concatenated.
struct EncodedBlocks {
  std::vector<std::uint8_t> modes;
  std::vector<std::size_t> lengths;        // of stored bytes
  std::vector<std::uint64_t> checksums;    // of decoded bytes
};

namespace detail {

// Encodes all blocks of a frame into `out`, which must be at least as large as the source.
// stream_of(position, room, next): the stream of a block, in `room` or valid until the thread asks
// for another one; empty if the tables lack a symbol. is_unchanged(position): the block equals its
// base.
template <class StreamOf, class IsUnchanged>
EncodedBlocks encode_all(const BlockLayout& layout, View source, std::span<std::uint8_t> out,
                         std::size_t threads, StreamOf&& stream_of, IsUnchanged&& is_unchanged) {
  require(out.size() >= source.size(), "less room than the blocks may take");
  struct Result {
    BlockMode mode;
    View stream;
    std::uint32_t guard;
    std::uint64_t checksum;
    std::vector<std::uint8_t> kept = {};

    void keep() {
      kept.assign(stream.begin(), stream.end());
      stream = kept;
    }
  };
  threads = std::clamp<std::size_t>(threads, 1, layout.n_blocks());
  const Kernels& kernels = *chosen_kernels();
  EncodedBlocks blocks;
  std::size_t end = 0;
  const auto append = [&](const std::uint8_t* bytes, std::size_t n) {
    if (bytes != out.data() + end) std::memcpy(out.data() + end, bytes, n);
    end += n;
  };
  InOrder<Result, std::function<void(std::size_t, const Result&)>> in_order(
      2 * threads, [&](std::size_t index, const Result& result) {
        const std::size_t begin = end;
        const BlockLayout::Position at = layout.position_of(index);
        if (result.mode == BlockMode::raw) append(source.data() + at.begin, at.size);
        if (result.mode == BlockMode::coded) {
          std::uint8_t guard[guard_bytes];
          store(guard, result.guard);
          append(guard, guard_bytes);
          append(result.stream.data(), result.stream.size());
        }
        blocks.modes.push_back(std::uint8_t(result.mode));
        blocks.lengths.push_back(end - begin);
        blocks.checksums.push_back(result.checksum);
      });
  const auto encode = [&](std::size_t index) {
    const BlockLayout::Position at = layout.position_of(index);
    Result result{BlockMode::unchanged, {}, 0,
                  checksum_of(kernels, source.data() + at.begin, at.size, index)};
    if (!is_unchanged(at)) {
      // With one thread the position of the stream in `out` is known.
      const bool is_known = threads == 1 && end + guard_bytes <= out.size();
      NextBlock next;
      if (index + threads < layout.n_blocks()) {
        const BlockLayout::Position next_position = layout.position_of(index + threads);
        next.bytes = source.subspan(next_position.begin, next_position.size);
      }
      result.stream = stream_of(
          at, is_known ? out.subspan(end + guard_bytes) : std::span<std::uint8_t>(), next);
      // A lacking symbol is an error of the planner, never of the caller.
      if (result.stream.empty())
        throw std::runtime_error("the planned tables do not hold the block's words");
      if (guard_bytes + result.stream.size() < at.size) {
        result.mode = BlockMode::coded;
        result.guard = std::uint32_t(
            checksum_of(kernels, result.stream.data(), result.stream.size(), 0));
      } else {
        result.mode = BlockMode::raw;
        result.stream = {};
      }
    }
    in_order.put(index, std::move(result));
    return true;
  };
  for_each_block(layout.n_blocks(), threads, [&](std::size_t index) {
    try {
      return encode(index);
    } catch (...) {
      in_order.cancel();
      throw;
    }
  });
  return blocks;
}

}  // namespace detail

// Encodes all blocks of the planned frame. Their stored bytes are at the beginning of `out`, which
// must be at least as large as the source. std::invalid_argument if sizes do not match.
inline EncodedBlocks encode_all(const DeltaEncoder& encoder, std::size_t rows_per_block,
                                std::size_t parts, View source, View base,
                                std::span<std::uint8_t> out, std::size_t threads) {
  const BlockLayout layout{encoder.rows, encoder.columns, encoder.word_bytes, rows_per_block,
                           parts};
  layout.check(source.size());
  require(base.size() == source.size(), "a base of another size");
  return detail::encode_all(
      layout, source, out, threads,
      [&](const BlockLayout::Position& at, std::span<std::uint8_t> room, NextBlock next) {
        return encoder.encode(source.data() + at.begin, base.data() + at.begin, at.row, at.shape,
                              room, next);
      },
      [&](const BlockLayout::Position& at) {
        return std::memcmp(source.data() + at.begin, base.data() + at.begin, at.size) == 0;
      });
}

// Encodes all blocks of a neuzip_lossless frame of rows x columns words, which has no base.
inline EncodedBlocks encode_all(const FloatEncoder& encoder, std::size_t rows, std::size_t columns,
                                std::size_t rows_per_block, std::size_t parts, View source,
                                std::span<std::uint8_t> out, std::size_t threads) {
  const BlockLayout layout{rows, columns, encoder.word_bytes, rows_per_block, parts};
  layout.check(source.size());
  return detail::encode_all(
      layout, source, out, threads,
      [&](const BlockLayout::Position& at, std::span<std::uint8_t>, NextBlock next) {
        return encoder.encode(source.subspan(at.begin, at.size), next);
      },
      [](const BlockLayout::Position&) { return false; });
}

}  // namespace deltahub
