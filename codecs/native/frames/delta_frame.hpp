// Encodes a whole fm_delta frame in one call, if it is clear that no codec without a base makes a
// smaller frame.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "frames/block_layout.hpp"
#include "frames/block_table.hpp"
#include "frames/delta_codec.hpp"
#include "frames/encode_blocks.hpp"
#include "frames/standalone_bound.hpp"

namespace deltahub {

// Byte offsets of the header fields that depend on the body: see codecs/spec/frame.md.
inline constexpr std::size_t version_at = 6, prelude_length_at = 12, body_length_at = 16;
inline constexpr std::size_t frame_checksum_bytes = 8, max_prelude_bytes = std::size_t(1) << 20;
// What a frame without a base needs beside prelude and blocks: header, one row of the block table
// and two checksums.
inline constexpr std::size_t standalone_frame_overhead =
    120 + BlockTable::row_bytes + 2 * frame_checksum_bytes;

class DeltaFrame {
 public:
  // Plans the frame. header: without its checksum, and with zeros in the fields that depend on the
  // body. size_limit: the frame must be smaller than this many bytes. std::invalid_argument if
  // sizes do not match.
  DeltaFrame(int kind, View source, View base, std::size_t rows, std::size_t columns,
             std::size_t rows_per_block, std::size_t parts, View header, std::uint64_t size_limit,
             Effort effort, const LowRank& low_rank)
      : source_(source),
        base_(base),
        header_(header),
        size_limit_(size_limit),
        standalone_bound_(standalone_bound(kind, source)) {
    require(header.size() >= body_length_at + 8, "a header that is too short");
    if (standalone_bound_ == 0) return;
    const auto bytes_of = [](const std::vector<std::int16_t>& numbers) {
      return View(reinterpret_cast<const std::uint8_t*>(numbers.data()),
                  numbers.size() * sizeof(std::int16_t));
    };
    encoder_ =
        make_delta_encoder(kind, source, base, rows, columns, int(effort), bytes_of(low_rank.left),
                           bytes_of(low_rank.right), low_rank.floor, low_rank.is_rounded, true);
    layout_ = {rows, columns, encoder_->word_bytes, rows_per_block, parts};
    layout_.check(source.size());
  }

  // Whether the estimate says that the frame is smaller than one without a base.
  bool pays() const {
    return encoder_ && encoder_->prelude.size() <= max_prelude_bytes &&
           encoder_->estimated_bytes < std::min<std::uint64_t>(standalone_bound_, source_.size());
  }
  // The size of the buffer that `write` needs.
  std::size_t max_bytes() const { return prefix_bytes() + source_.size(); }

  // Writes the frame and returns its length. Nothing if the frame is not small enough, or if its
  // blocks save less than the prelude takes; `out` then holds arbitrary bytes.
  std::optional<std::size_t> write(std::span<std::uint8_t> out, std::size_t threads) const {
    const EncodedBlocks blocks = encode_all(*encoder_, layout_.rows_per_block, layout_.parts,
                                            source_, base_, out.subspan(prefix_bytes()), threads);
    // Stored bytes of all blocks, and decoded bytes of the blocks that have stored bytes.
    std::size_t body = 0, coded = 0;
    for (std::size_t i = 0; i < blocks.modes.size(); ++i) {
      body += blocks.lengths[i];
      if (BlockMode(blocks.modes[i]) != BlockMode::unchanged) coded += layout_.position_of(i).size;
    }
    const std::size_t prelude = encoder_->prelude.size(), length = prefix_bytes() + body;
    if (coded <= body + prelude ||
        length >= std::min(size_limit_, standalone_frame_overhead + standalone_bound_))
      return {};
    std::uint8_t* at = out.data();
    const auto append = [&at](View bytes) {
      std::memcpy(at, bytes.data(), bytes.size());
      at += bytes.size();
    };
    const auto append_checksum = [&](const std::uint8_t* begin) {
      store<std::uint64_t>(at, checksum_of(*chosen_kernels(), begin, std::size_t(at - begin), 0));
      at += frame_checksum_bytes;
    };
    append(header_);
    store(out.data() + version_at, std::uint8_t(encoder_->version));
    store<std::uint32_t>(out.data() + prelude_length_at, std::uint32_t(prelude));
    store<std::uint64_t>(out.data() + body_length_at, body);
    append_checksum(out.data());
    const std::uint8_t* const checked = at;
    append(encoder_->prelude);
    for (std::size_t i = 0; i < blocks.modes.size(); ++i, at += BlockTable::row_bytes) {
      store<std::uint32_t>(at, std::uint32_t(blocks.lengths[i]));
      store<std::uint32_t>(at + 4, blocks.modes[i]);
      store<std::uint64_t>(at + 8, blocks.checksums[i]);
    }
    append_checksum(checked);
    return length;
  }

 private:
  std::size_t prefix_bytes() const {
    return header_.size() + encoder_->prelude.size() + layout_.n_blocks() * BlockTable::row_bytes +
           2 * frame_checksum_bytes;
  }

  View source_, base_, header_;
  std::uint64_t size_limit_, standalone_bound_;
  std::unique_ptr<DeltaEncoder> encoder_;
  BlockLayout layout_{};
};

}  // namespace deltahub
