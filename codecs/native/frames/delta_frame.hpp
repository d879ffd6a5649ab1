// A whole frame of an fm_delta body: planned, coded and put together at once, where it is clear that
// no other codec makes a smaller one.
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

// The numbers of a frame's header that its body decides; codecs/spec/frame.md has them all.
inline constexpr std::size_t version_at = 6, prelude_length_at = 12, body_length_at = 16;
inline constexpr std::size_t frame_checksum_bytes = 8, most_prelude_bytes = std::size_t(1) << 20;
// Of one without a base, beside prelude and blocks: a header, a row of the table, both checksums.
inline constexpr std::size_t least_frame_bytes =
    120 + BlockTable::row_bytes + 2 * frame_checksum_bytes;

class DeltaFrame {
 public:
  // header: without its checksum, and with zeros for what the body decides. most: bytes that the
  // frame must stay below. std::invalid_argument where sizes do not fit each other.
  DeltaFrame(int kind, View source, View base, std::size_t rows, std::size_t columns,
             std::size_t rows_per_block, std::size_t parts, View header, std::uint64_t most,
             Effort effort, const LowRank& low_rank)
      : source_(source), base_(base), header_(header), most_(most),
        least_alone_(least_bytes_alone(kind, source)) {
    require(header.size() >= body_length_at + 8, "a header that is cut off");
    if (least_alone_ == 0) return;
    const auto bytes_of = [](const std::vector<std::int16_t>& numbers) {
      return View(reinterpret_cast<const std::uint8_t*>(numbers.data()),
                  numbers.size() * sizeof(std::int16_t));
    };
    encoder_ = planned_deltas(kind, source, base, rows, columns, int(effort),
                              bytes_of(low_rank.left), bytes_of(low_rank.right), low_rank.floor,
                              low_rank.is_rounded, true);
    cut_ = {rows, columns, encoder_->word_bytes, rows_per_block, parts};
    cut_.check(source.size());
  }

  // Whether it seems to become as small as it must.
  bool pays() const {
    return encoder_ && encoder_->prelude.size() <= most_prelude_bytes &&
           encoder_->estimated_bytes < std::min<std::uint64_t>(least_alone_, source_.size());
  }
  // How large a buffer `write` takes.
  std::size_t room() const { return front() + source_.size(); }

  // Its length; nothing where it is no smaller than it must be, or no block needs the tables. What
  // `out` holds is then worthless.
  std::optional<std::size_t> write(std::span<std::uint8_t> out, std::size_t threads) const {
    const EncodedRun run = encode_run(*encoder_, cut_.rows_per_block, cut_.parts, source_, base_,
                                      out.subspan(front()), threads);
    std::size_t body = 0, coded = 0;  // bytes stored, and decoded of blocks that are stored
    for (std::size_t i = 0; i < run.modes.size(); ++i) {
      body += run.lengths[i];
      if (BlockMode(run.modes[i]) != BlockMode::unchanged) coded += cut_.place_of(i).size;
    }
    const std::size_t prelude = encoder_->prelude.size(), length = front() + body;
    if (coded <= body + prelude || length >= std::min(most_, least_frame_bytes + least_alone_))
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
    for (std::size_t i = 0; i < run.modes.size(); ++i, at += BlockTable::row_bytes) {
      store<std::uint32_t>(at, std::uint32_t(run.lengths[i]));
      store<std::uint32_t>(at + 4, run.modes[i]);
      store<std::uint64_t>(at + 8, run.checksums[i]);
    }
    append_checksum(checked);
    return length;
  }

 private:
  std::size_t front() const {
    return header_.size() + encoder_->prelude.size() + cut_.n_blocks() * BlockTable::row_bytes +
           2 * frame_checksum_bytes;
  }

  View source_, base_, header_;
  std::uint64_t most_, least_alone_;
  std::unique_ptr<DeltaEncoder> encoder_;
  Cut cut_{};
};

}  // namespace deltahub
