// fm_delta for any kind of words: plans, preludes and blocks behind plain interfaces.
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

// The rectangle that a frame is; blocks lie within it.
struct FrameShape {
  std::size_t rows, columns, word_bytes;

  void check_block(std::size_t size, std::size_t base_size, std::size_t row, std::size_t column,
                   std::size_t n_rows, std::size_t n_columns) const {
    require(n_rows > 0 && n_rows <= rows && row <= rows - n_rows && n_columns > 0 &&
                n_columns <= columns && column <= columns - n_columns,
            "a block outside of its frame");
    // Divided first: the product may wrap.
    require(n_rows <= size / word_bytes / n_columns &&
                size == n_rows * n_columns * word_bytes && base_size == size,
            "a block's words and its base must be rows x columns words");
  }

  // Of a block of `size` bytes, where a row has so many parts.
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
  // In `room`, where that is sure to take it; else until this thread encodes another block.
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
  // The same of two blocks.
  virtual std::array<DecodedBlock, 2> decode_two(const std::array<CodedBlock, 2>& blocks,
                                                 const std::array<BlockShape, 2>& shapes) const = 0;
};

namespace detail {

template <class Words>
class DeltaEncoderOf final : public DeltaEncoder {
 public:
  // kernels: those that planned, which lay out the factors of the rows.
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
    frame_.set_stairs(std::move(plan.columns.stairs));
    if (plan.model.rank() > 0) frame_.set_right(plan.columns.right, columns);
  }

  View encode(const std::uint8_t* source, const std::uint8_t* base, std::size_t row,
              const BlockShape& shape, std::span<std::uint8_t> room,
              NextBlock next) const override {
    const auto slice = [&](const std::vector<std::int16_t>& all, std::size_t each) {
      if (all.empty()) return std::vector<std::int16_t>();
      const auto begin = all.begin() + std::ptrdiff_t(row * each);
      return std::vector<std::int16_t>(begin, begin + std::ptrdiff_t(shape.rows * each));
    };
    const RowSides sides{.scales = slice(rows_.scales, 1),
                         .flags = slice(rows_.flags, 1),
                         .left = slice(rows_.left, frame_.filled_rank())};
    return encode_block(frame_, tables_, shape, sides, source, base, room, next);
  }

 private:
  FrameModel<Words> frame_;
  DeltaRows tables_;
  RowSides rows_;
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
  LowRank found;
  if (left.empty() && right.empty()) return found;
  found.rank = int(left.size() / (2 * rows));
  found.floor = floor;
  found.is_rounded = is_rounded;
  require(found.rank >= 1 && found.rank <= max_rank && std::size_t(found.rank) <= rows &&
              std::size_t(found.rank) <= columns &&
              left.size() == 2 * rows * std::size_t(found.rank) &&
              right.size() == 2 * columns * std::size_t(found.rank),
          "factors must be rows x rank and rank x columns numbers of 16 bits");
  found.left.resize(left.size() / 2);
  found.right.resize(right.size() / 2);
  std::memcpy(found.left.data(), left.data(), left.size());
  std::memcpy(found.right.data(), right.data(), right.size());
  return found;
}

}  // namespace detail

// See fm_delta/stride.hpp. std::invalid_argument where sizes do not fit each other.
inline unsigned common_stride(int kind, View source, View base) {
  return with_words(word_kind(kind), [&]<class Words>(Words) {
    require(source.size() == base.size() && source.size() % sizeof(typename Words::Word) == 0,
            "a base of another size, or not a whole number of words");
    return common_stride<Words>(source, base);
  });
}

// Plans the model of a frame; with a stride where it has one and `is_strided` allows it.
// std::invalid_argument where sizes do not fit each other.
inline std::unique_ptr<DeltaEncoder> planned_deltas(int kind, View source, View base,
                                                    std::size_t rows, std::size_t columns,
                                                    int effort, View left, View right, int floor,
                                                    bool is_rounded, bool is_strided) {
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

// About how many bytes these runs of n words take as one row against their base, planned with the
// least effort. begins: where they begin, in bytes. std::invalid_argument where sizes do not fit each
// other.
inline std::uint64_t estimated_deltas(int kind, View source, View base,
                                      const std::vector<std::size_t>& begins, std::size_t n) {
  return with_words(word_kind(kind), [&]<class Words>(Words) -> std::uint64_t {
    using Plans = Planner<Words>;
    constexpr std::size_t word_bytes = sizeof(typename Words::Word);
    constexpr std::size_t piece_bytes = Plans::sample_piece * word_bytes;
    require(source.size() == base.size(), "a base of another size");
    require(!begins.empty() && n > 0 && n % Plans::sample_piece == 0 &&
                n <= source.size() / word_bytes &&
                std::ranges::all_of(begins, [&](std::size_t begin) {
                  return begin <= source.size() - n * word_bytes;
                }),
            "runs must be whole pieces of the words");
    // Only those pieces are copied that will be looked at.
    const std::size_t count = begins.size() * n, n_pieces = n / Plans::sample_piece;
    const std::size_t step = Plans::sample_step(count, Plans::sampled_to_estimate);
    const std::size_t end = begins.size() * n_pieces, first = end > step / 2 ? step / 2 : 0;
    const auto piece_of = [&](View all, std::size_t i) {
      return all.subspan(begins[i / n_pieces] + i % n_pieces * piece_bytes, piece_bytes);
    };
    std::vector<std::uint8_t> words, near;
    words.reserve((end / step + 1) * piece_bytes);
    near.reserve(words.capacity());
    constexpr std::size_t n_ahead = 8;
    for (std::size_t i = first; i < end; i += step) {
      if (const std::size_t ahead = i + n_ahead * step; ahead < end)
        for (const View all : {source, base}) fetch(piece_of(all, ahead).data(), piece_bytes);
      const View piece = piece_of(source, i), from = piece_of(base, i);
      words.insert(words.end(), piece.begin(), piece.end());
      near.insert(near.end(), from.begin(), from.end());
    }
    const LowRank none;
    return Plans(*chosen_kernels(), words.data(), near.data(), 1, words.size() / word_bytes,
                 Effort::fast, none, common_stride<Words>(words, near))
        .estimated_bytes(count);
  });
}

// std::invalid_argument where no encoder writes such a prelude for such a frame.
inline std::unique_ptr<DeltaDecoder> parsed_deltas(int kind, View prelude, std::size_t rows,
                                                   std::size_t columns, int version) {
  require(version == first_delta_version || version == strided_delta_version, "no such version");
  return with_words(word_kind(kind), [&]<class Words>(Words) -> std::unique_ptr<DeltaDecoder> {
    constexpr const char* fault = "no encoder writes such a prelude";
    require(rows > 0 && columns > 0, "a frame without words");
    auto parsed = parse_fields<Words>(prelude.data(), prelude.size(), rows, columns, version);
    require(parsed.has_value(), fault);
    FrameModel<Words> frame(*chosen_kernels(), std::move(parsed->model), true);
    const View stream = prelude.subspan(parsed->stream_begin);
    require(frame.read_columns(stream.data(), stream.size(), columns), fault);
    return std::make_unique<detail::DeltaDecoderOf<Words>>(
        FrameShape{rows, columns, sizeof(typename Words::Word)}, std::move(frame));
  });
}

}  // namespace deltahub
