// fm_delta behind interfaces that do not depend on the kind of words: planning, preludes and
// blocks. A word is the bit pattern of one element.
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "fm_delta/block_reader.hpp"
#include "fm_delta/decode.hpp"
#include "fm_delta/encode.hpp"
#include "kernels/codec_interface.hpp"
#include "kernels/dispatch.hpp"
#include "planner/planner.hpp"
#include "planner/sampled_ranges.hpp"

namespace deltahub {

// The size of a frame as rows x columns words.
struct FrameShape {
  std::size_t rows, columns, word_bytes;

  void check_block(std::size_t size, std::size_t base_size, std::size_t row, std::size_t column,
                   std::size_t n_rows, std::size_t n_columns) const {
    require(n_rows > 0 && n_rows <= rows && row <= rows - n_rows && n_columns > 0 &&
                n_columns <= columns && column <= columns - n_columns,
            "a block outside of its frame");
    // The division comes first because the product may overflow.
    require(n_rows <= size / word_bytes / n_columns &&
                size == n_rows * n_columns * word_bytes && base_size == size,
            "a block's words and its base must be rows x columns words");
  }

  // The shape of block `index`, which has `size` bytes. parts: see BlockLayout.
  BlockShape shape_of(std::size_t index, std::size_t parts, std::size_t size) const {
    require(parts > 0 && parts <= columns, "a row has empty parts");
    const std::size_t n_words = size / word_bytes;
    if (parts == 1) return {n_words / columns, columns, 0};
    const std::size_t part_width = (columns + parts - 1) / parts;
    return {1, n_words, index % parts * part_width};
  }
};

struct DeltaEncoder : FrameShape {
  explicit DeltaEncoder(const FrameShape& shape) : FrameShape(shape) {}
  virtual ~DeltaEncoder() = default;
  // The stream of the block whose first row is `row`. It lies in `room` if that is large enough for
  // any stream of such a block, or else is valid until this thread encodes another block.
  virtual View encode(const std::uint8_t* source, const std::uint8_t* base, std::size_t row,
                      const BlockShape& shape, std::span<std::uint8_t> room,
                      NextBlock next) const = 0;
  std::vector<std::uint8_t> prelude;
  int version = first_delta_version;  // of the prelude
  std::uint64_t estimated_bytes = 0;
};

struct DeltaDecoder : FrameShape {
  explicit DeltaDecoder(const FrameShape& shape) : FrameShape(shape) {}
  virtual ~DeltaDecoder() = default;
  virtual DecodedBlock decode(const CodedBlock& block, const BlockShape& shape) const = 0;
  // Decodes two blocks, which is faster than one after the other.
  virtual std::array<DecodedBlock, 2> decode_two(const std::array<CodedBlock, 2>& blocks,
                                                 const std::array<BlockShape, 2>& shapes) const = 0;
};

namespace detail {

template <class Words>
class DeltaEncoderOf final : public DeltaEncoder {
 public:
  // kernels: those of the planner, because the layout of the row factors depends on them.
  DeltaEncoderOf(const Kernels& kernels, const FrameShape& shape, Plan<Words>&& plan)
      : DeltaEncoder(shape),
        frame_(kernels, Model(plan.model), false),
        tables_(kernels, plan.model.tables, plan.model.table_log),
        rows_(std::move(plan.rows)) {
    version = plan.model.version();
    prelude = write_fields(plan.model);
    const auto stream = encode_columns<Words>(plan.model, tables_, plan.columns, columns);
    if (plan.model.has_column_stream() && stream.empty())
      throw std::runtime_error("the planned tables do not hold the frame's columns");
    prelude.insert(prelude.end(), stream.begin(), stream.end());
    estimated_bytes = plan.estimated_bytes;
    frame_.set_column_scales(std::move(plan.columns.scales));
    frame_.set_decay_steps(std::move(plan.columns.decay_steps));
    if (plan.model.rank() > 0) frame_.set_right(plan.columns.right, columns);
  }

  View encode(const std::uint8_t* source, const std::uint8_t* base, std::size_t row,
              const BlockShape& shape, std::span<std::uint8_t> room,
              NextBlock next) const override {
    const auto slice = [&](const std::vector<std::int16_t>& all_rows, std::size_t each) {
      if (all_rows.empty()) return std::vector<std::int16_t>();
      const auto begin = all_rows.begin() + std::ptrdiff_t(row * each);
      return std::vector<std::int16_t>(begin, begin + std::ptrdiff_t(shape.rows * each));
    };
    const RowSideInfo side_info{.scales = slice(rows_.scales, 1),
                                .flags = slice(rows_.flags, 1),
                                .left = slice(rows_.left, frame_.padded_rank())};
    return encode_block(frame_, tables_, shape, side_info, source, base, room, next);
  }

 private:
  FrameModel<Words> frame_;
  DeltaEncodingTables tables_;
  RowSideInfo rows_;
};

template <class Words>
class DeltaDecoderOf final : public DeltaDecoder {
 public:
  DeltaDecoderOf(const FrameShape& shape, FrameModel<Words>&& frame)
      : DeltaDecoder(shape), frame_(std::move(frame)) {}
  DecodedBlock decode(const CodedBlock& block, const BlockShape& shape) const override {
    return decode_block(frame_, shape, block);
  }
  std::array<DecodedBlock, 2> decode_two(const std::array<CodedBlock, 2>& blocks,
                                         const std::array<BlockShape, 2>& shapes) const override {
    return decode_two_blocks(frame_, shapes, blocks);
  }

 private:
  FrameModel<Words> frame_;
};

inline LowRank low_rank_of(View left, View right, int floor, bool is_rounded, std::size_t rows,
                          std::size_t columns) {
  LowRank low_rank;
  if (left.empty() && right.empty()) return low_rank;
  low_rank.rank = int(left.size() / (2 * rows));
  low_rank.floor = floor;
  low_rank.is_rounded = is_rounded;
  require(low_rank.rank >= 1 && low_rank.rank <= max_rank && std::size_t(low_rank.rank) <= rows &&
              std::size_t(low_rank.rank) <= columns &&
              left.size() == 2 * rows * std::size_t(low_rank.rank) &&
              right.size() == 2 * columns * std::size_t(low_rank.rank),
          "factors must be rows x rank and rank x columns numbers of 16 bits");
  low_rank.left.resize(left.size() / 2);
  low_rank.right.resize(right.size() / 2);
  std::memcpy(low_rank.left.data(), left.data(), left.size());
  std::memcpy(low_rank.right.data(), right.data(), right.size());
  return low_rank;
}

}  // namespace detail

// See fm_delta/stride.hpp. std::invalid_argument if sizes do not match.
inline unsigned common_stride(int kind, View source, View base) {
  return with_words(word_kind(kind), [&]<class Words>(Words) {
    require(source.size() == base.size() && source.size() % sizeof(typename Words::Word) == 0,
            "a base of another size, or not a whole number of words");
    return common_stride<Words>(source, base);
  });
}

// Plans the model of a frame. is_strided: use the stride of the frame, if it is not 0; floor,
// is_rounded: see LowRank. std::invalid_argument if sizes do not match.
inline std::unique_ptr<DeltaEncoder> make_delta_encoder(int kind, View source, View base,
                                                        std::size_t rows, std::size_t columns,
                                                        int effort, View left, View right,
                                                        int floor, bool is_rounded,
                                                        bool is_strided) {
  return with_words(word_kind(kind), [&]<class Words>(Words) -> std::unique_ptr<DeltaEncoder> {
    const FrameShape shape{rows, columns, sizeof(typename Words::Word)};
    shape.check_block(source.size(), base.size(), 0, 0, rows, columns);
    require(effort >= int(Effort::fast) && effort <= int(Effort::max), "no such effort");
    const LowRank low_rank = detail::low_rank_of(left, right, floor, is_rounded, rows, columns);
    require(low_rank.rank == 0 || guard_bits(Words::mantissa_bits) > 0,
            "factors for words that cannot be predicted");
    require(low_rank.rank == 0 || (floor >= 1 && floor <= (1 << Words::exponent_bits) - 2),
            "a floor that is no exponent");
    const Kernels& kernels = *chosen_kernels();
    const unsigned stride = is_strided ? common_stride<Words>(source, base) : 0;
    Planner<Words> planner(kernels, source.data(), base.data(), rows, columns, Effort(effort),
                           low_rank, stride);
    return std::make_unique<detail::DeltaEncoderOf<Words>>(kernels, shape, planner.plan());
  });
}

// Estimates the bytes that ranges of n words take as deltas, as one row planned with the least
// effort. begins: the first byte of each range. std::invalid_argument if sizes do not match.
inline std::uint64_t estimate_delta_bytes(int kind, View source, View base,
                                          const std::vector<std::size_t>& begins, std::size_t n) {
  return with_words(word_kind(kind), [&]<class Words>(Words) -> std::uint64_t {
    using FramePlanner = Planner<Words>;
    constexpr std::size_t word_bytes = sizeof(typename Words::Word);
    constexpr std::size_t range_bytes = FramePlanner::range_words * word_bytes;
    require(source.size() == base.size(), "a base of another size");
    require(
        !begins.empty() && n > 0 && n % FramePlanner::range_words == 0 &&
            n <= source.size() / word_bytes &&
            std::ranges::all_of(
                begins, [&](std::size_t begin) { return begin <= source.size() - n * word_bytes; }),
        "ranges must be within the words, and of a multiple of 64 words");
    // Only the parts that the planner would sample are copied.
    const std::size_t count = begins.size() * n, ranges_per_begin = n / FramePlanner::range_words;
    const std::size_t step = FramePlanner::sample_step(count, FramePlanner::sampled_to_estimate);
    const std::size_t end = begins.size() * ranges_per_begin, first = end > step / 2 ? step / 2 : 0;
    const auto range_at = [&](View source_or_base, std::size_t i) {
      return source_or_base.subspan(
          begins[i / ranges_per_begin] + i % ranges_per_begin * range_bytes, range_bytes);
    };
    std::vector<std::uint8_t> sampled_source, sampled_base;
    sampled_source.reserve((end / step + 1) * range_bytes);
    sampled_base.reserve(sampled_source.capacity());
    constexpr std::size_t n_upcoming = 8;
    for (std::size_t i = first; i < end; i += step) {
      if (const std::size_t upcoming = i + n_upcoming * step; upcoming < end)
        for (const View source_or_base : {source, base})
          prefetch(range_at(source_or_base, upcoming).data(), range_bytes);
      const View range = range_at(source, i), from = range_at(base, i);
      sampled_source.insert(sampled_source.end(), range.begin(), range.end());
      sampled_base.insert(sampled_base.end(), from.begin(), from.end());
    }
    const LowRank none;
    return FramePlanner(*chosen_kernels(), sampled_source.data(), sampled_base.data(), 1,
                        sampled_source.size() / word_bytes, Effort::fast, none,
                        common_stride<Words>(sampled_source, sampled_base))
        .estimated_bytes(count);
  });
}

namespace detail {

// The model of a prelude, ready to decode. std::invalid_argument if no encoder writes such a
// prelude for a frame of this size.
template <class Words>
FrameModel<Words> frame_model(View prelude, std::size_t rows, std::size_t columns, int version) {
  constexpr const char* error = "no encoder writes such a prelude";
  require(version == first_delta_version || version == strided_delta_version, "no such version");
  require(rows > 0 && columns > 0, "a frame without words");
  auto parsed = parse_fields<Words>(prelude.data(), prelude.size(), rows, columns, version);
  require(parsed.has_value(), error);
  FrameModel<Words> frame(*chosen_kernels(), std::move(parsed->model), true);
  const View stream = prelude.subspan(parsed->stream_begin);
  require(frame.read_columns(stream.data(), stream.size(), columns), error);
  return frame;
}

}  // namespace detail

// std::invalid_argument if no encoder writes such a prelude for a frame of this size.
inline std::unique_ptr<DeltaDecoder> make_delta_decoder(int kind, View prelude, std::size_t rows,
                                                        std::size_t columns, int version) {
  return with_words(word_kind(kind), [&]<class Words>(Words) -> std::unique_ptr<DeltaDecoder> {
    return std::make_unique<detail::DeltaDecoderOf<Words>>(
        FrameShape{rows, columns, sizeof(typename Words::Word)},
        detail::frame_model<Words>(prelude, rows, columns, version));
  });
}

}  // namespace deltahub
