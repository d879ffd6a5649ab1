// Blocks of a frame that follow each other: their modes, guards and checksums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "codec.hpp"
#include "delta_codec.hpp"
#include "dispatch.hpp"
#include "float_codec.hpp"

namespace deltahub {

// As protocol.py has them.
enum class BlockMode : std::uint8_t { unchanged = 0, raw = 1, coded = 2 };

inline constexpr std::size_t guard_bytes = 4;

// One block: stored (behind its guard, if it is coded) and decoded.
struct Block {
  const std::uint8_t* stored;
  std::size_t length;
  const std::uint8_t* base;
  std::uint8_t* out;
  std::size_t size;
};

struct BlockRun {
  const std::vector<std::uint8_t>& modes;
  const std::vector<std::size_t>& lengths;  // of stored bytes
  const std::vector<std::size_t>& sizes;    // of decoded bytes

  // std::invalid_argument unless `decode` stays within these buffers.
  void check(std::size_t payload_size, std::size_t base_size, std::size_t out_size) const {
    require(lengths.size() == modes.size() && sizes.size() == modes.size(),
            "a mode, a length and a size for each block");
    std::size_t stored_left = payload_size, out_left = out_size;
    for (std::size_t i = 0; i < modes.size(); ++i) {
      require(sizes[i] > 0, "a block without words");
      require(lengths[i] <= stored_left && sizes[i] <= out_left, "blocks longer than their bytes");
      stored_left -= lengths[i];
      out_left -= sizes[i];
      const auto mode = BlockMode(modes[i]);
      const bool is_valid =
          mode == BlockMode::coded       ? lengths[i] > guard_bytes + least_checked
          : mode == BlockMode::raw       ? lengths[i] == sizes[i]
          : mode == BlockMode::unchanged ? lengths[i] == 0 && base_size == out_size
                                         : false;
      require(is_valid, "a block of such a mode has another length");
    }
    require(stored_left == 0 && out_left == 0, "more bytes than blocks");
    require(base_size == 0 || base_size == out_size, "a base of another size");
  }

  // decode_coded(i, block): whether it is one that an encoder wrote. `base` may be null where there
  // is none. False: a block is damaged.
  template <class DecodeCoded>
  bool decode(const std::uint8_t* payload, const std::uint8_t* base, std::uint8_t* out,
              DecodeCoded&& decode_coded) const {
    for (std::size_t i = 0; i < modes.size(); ++i) {
      switch (BlockMode(modes[i])) {
        case BlockMode::unchanged:
          if (base == nullptr) return false;  // check() has refused it
          std::memcpy(out, base, sizes[i]);
          break;
        case BlockMode::raw: std::memcpy(out, payload, sizes[i]); break;
        case BlockMode::coded: {
          const std::uint8_t* const stream = payload + guard_bytes;
          const std::size_t length = lengths[i] - guard_bytes;
          const auto checksum = std::uint32_t(chosen_kernels().load()->checksum(stream, length, 0));
          if (checksum != load<std::uint32_t>(payload)) return false;
          if (!decode_coded(i, Block{stream, length, base, out, sizes[i]})) return false;
        }
      }
      payload += lengths[i];
      out += sizes[i];
      if (base != nullptr) base += sizes[i];
    }
    return true;
  }
};

// Fills `out` with the blocks of an fm_delta frame from `first` on; a row of it has so many parts.
// False: one of them is damaged. std::invalid_argument where sizes do not fit each other.
inline bool decode_run(const DeltaDecoder& decoder, std::size_t first, std::size_t parts,
                       const BlockRun& run, View payload, View base, std::span<std::uint8_t> out) {
  // Coded blocks read it, whatever their neighbours are.
  require(base.size() == out.size(), "a base of another size");
  run.check(payload.size(), base.size(), out.size());
  return run.decode(payload.data(), base.data(), out.data(), [&](std::size_t i, const Block& at) {
    const BlockShape shape = decoder.shape_of(first + i, parts, at.size);
    decoder.check_block(at.size, at.size, 0, shape.first_column, shape.rows, shape.columns);
    return decoder.decode(at.stored, at.length, at.base, at.out, shape);
  });
}

// The same of a neuzip_lossless frame, which has no base.
inline bool decode_run(const FloatDecoder& decoder, const BlockRun& run, View payload,
                       std::span<std::uint8_t> out) {
  run.check(payload.size(), 0, out.size());
  return run.decode(payload.data(), nullptr, out.data(), [&](std::size_t, const Block& at) {
    return decoder.decode({at.stored, at.length}, at.out, at.size);
  });
}

// How many blocks, from `first` on, have these checksums. std::invalid_argument unless the blocks,
// each longer than least_checked, make up `decoded`.
inline std::size_t n_intact(std::uint64_t first, const std::vector<std::size_t>& sizes,
                            const std::vector<std::uint64_t>& checksums, View decoded) {
  require(sizes.size() == checksums.size(), "a checksum for each block");
  std::size_t left = decoded.size();
  for (const std::size_t size : sizes) {
    require(size > least_checked && size <= left, "blocks that are no part of the bytes");
    left -= size;
  }
  require(left == 0, "more bytes than blocks");
  const std::uint8_t* bytes = decoded.data();
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (chosen_kernels().load()->checksum(bytes, sizes[i], first + i) != checksums[i]) return i;
    bytes += sizes[i];
  }
  return sizes.size();
}

}  // namespace deltahub
