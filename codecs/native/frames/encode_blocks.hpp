// All blocks of a frame, encoded: their modes, guards and checksums.
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

// The blocks as a frame has them; their stored bytes are elsewhere, back to back.
struct EncodedRun {
  std::vector<std::uint8_t> modes;
  std::vector<std::size_t> lengths;        // of stored bytes
  std::vector<std::uint64_t> checksums;    // of decoded bytes
};

namespace detail {

// stream_of(place, room, next): a block's stream, in `room`, or until the thread asks for another one;
// empty where it does not hold the block's words.
// is_unchanged(place): whether the block needs none. `out` takes as many bytes as the source has.
template <class StreamOf, class IsUnchanged>
EncodedRun encode_run(const Cut& cut, View source, std::span<std::uint8_t> out,
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
  threads = std::clamp<std::size_t>(threads, 1, cut.n_blocks());
  const Kernels& kernels = *chosen_kernels();
  EncodedRun run;
  std::size_t end = 0;
  const auto append = [&](const std::uint8_t* bytes, std::size_t n) {
    if (bytes != out.data() + end) std::memcpy(out.data() + end, bytes, n);
    end += n;
  };
  InOrder<Result, std::function<void(std::size_t, const Result&)>> in_order(
      2 * threads, [&](std::size_t index, const Result& result) {
        const std::size_t begin = end;
        const Cut::Place at = cut.place_of(index);
        if (result.mode == BlockMode::raw) append(source.data() + at.begin, at.size);
        if (result.mode == BlockMode::coded) {
          std::uint8_t guard[guard_bytes];
          store(guard, result.guard);
          append(guard, guard_bytes);
          append(result.stream.data(), result.stream.size());
        }
        run.modes.push_back(std::uint8_t(result.mode));
        run.lengths.push_back(end - begin);
        run.checksums.push_back(result.checksum);
      });
  const auto encode = [&](std::size_t index) {
    const Cut::Place at = cut.place_of(index);
    Result result{BlockMode::unchanged, {}, 0,
                  checksum_of(kernels, source.data() + at.begin, at.size, index)};
    if (!is_unchanged(at)) {
      // With one thread it is known where the stream will lie.
      const bool is_known = threads == 1 && end + guard_bytes <= out.size();
      NextBlock next;
      if (index + threads < cut.n_blocks()) {
        const Cut::Place place = cut.place_of(index + threads);
        next.bytes = source.subspan(place.begin, place.size);
      }
      result.stream = stream_of(
          at, is_known ? out.subspan(end + guard_bytes) : std::span<std::uint8_t>(), next);
      // What the tables lack is a fault of the planner's, never of the caller's.
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
  for_each_block(cut.n_blocks(), threads, [&](std::size_t index) {
    try {
      return encode(index);
    } catch (...) {
      in_order.cancel();
      throw;
    }
  });
  return run;
}

}  // namespace detail

// All blocks of the frame that was planned, their stored bytes at the beginning of `out`, which has
// room for the source. std::invalid_argument where sizes do not fit each other.
inline EncodedRun encode_run(const DeltaEncoder& encoder, std::size_t rows_per_block,
                             std::size_t parts, View source, View base,
                             std::span<std::uint8_t> out, std::size_t threads) {
  const Cut cut{encoder.rows, encoder.columns, encoder.word_bytes, rows_per_block, parts};
  cut.check(source.size());
  require(base.size() == source.size(), "a base of another size");
  return detail::encode_run(
      cut, source, out, threads,
      [&](const Cut::Place& at, std::span<std::uint8_t> room, NextBlock next) {
        return encoder.encode(source.data() + at.begin, base.data() + at.begin, at.row, at.shape,
                              room, next);
      },
      [&](const Cut::Place& at) {
        return std::memcmp(source.data() + at.begin, base.data() + at.begin, at.size) == 0;
      });
}

// The same of a neuzip_lossless frame of so many words, which has no base.
inline EncodedRun encode_run(const FloatEncoder& encoder, std::size_t rows, std::size_t columns,
                             std::size_t rows_per_block, std::size_t parts, View source,
                             std::span<std::uint8_t> out, std::size_t threads) {
  const Cut cut{rows, columns, encoder.word_bytes, rows_per_block, parts};
  cut.check(source.size());
  return detail::encode_run(
      cut, source, out, threads,
      [&](const Cut::Place& at, std::span<std::uint8_t>, NextBlock next) {
        return encoder.encode(source.subspan(at.begin, at.size), next);
      },
      [](const Cut::Place&) { return false; });
}

}  // namespace deltahub
