#include "bindings/parts.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/buffers.hpp"
#include "frames/block_table.hpp"
#include "frames/decode_blocks.hpp"
#include "frames/delta_codec.hpp"
#include "frames/encode_blocks.hpp"
#include "frames/float_codec.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace deltahub {
namespace {

nb::bytes as_bytes(View bytes) { return nb::bytes(bytes.data(), bytes.size()); }

// (modes, stored lengths, checksums)
using Encoded =
    std::tuple<std::vector<std::uint8_t>, std::vector<std::size_t>, std::vector<std::uint64_t>>;

Encoded as_lists(EncodedBlocks&& blocks) {
  return {std::move(blocks.modes), std::move(blocks.lengths), std::move(blocks.checksums)};
}

// (number of intact blocks before the first damaged one, its fault)
using Decoded = std::tuple<std::size_t, int>;

Decoded as_tuple(const DecodeResult& result) { return {result.n_intact, int(result.fault)}; }

void parse_table(BlockTable* table, const Bytes& bytes, std::size_t rows, std::size_t columns,
                 std::size_t word_bytes, std::size_t rows_per_block, std::size_t parts,
                 bool has_base, std::uint64_t stored_bytes) {
  new (table) BlockTable(view_of(bytes), {rows, columns, word_bytes, rows_per_block, parts},
                         has_base, stored_bytes);
}

// (mode, stored length, checksum) of each block
using Rows = std::vector<std::tuple<std::uint8_t, std::size_t, std::uint64_t>>;

Rows rows_of(const BlockTable& table, std::size_t first, std::size_t end) {
  const BlockRange blocks = BlockRange::of(table, first, end, 1);
  Rows rows;
  for (std::size_t i = 0; i < blocks.modes.size(); ++i)
    rows.emplace_back(blocks.modes[i], blocks.lengths[i], blocks.checksums[i]);
  return rows;
}

std::pair<std::size_t, std::size_t> stored_span(const BlockTable& table, std::size_t first,
                                                std::size_t end) {
  require(first < end && end <= table.n_blocks(), "no such blocks in the frame");
  return {table.stored_begin(first), table.ends[end - 1]};
}

Decoded decode_uncoded_range(const BlockTable& table, std::size_t first, std::size_t end,
                             const Bytes& payload, const Bytes& base, const WritableBytes& out,
                             std::size_t threads) {
  nb::gil_scoped_release unlocked;
  return as_tuple(deltahub::decode_range(BlockRange::of(table, first, end, threads),
                                         view_of(payload), view_of(base),
                                         {out.data(), out.size()}));
}

class FmDeltaEncoder {
 public:
  FmDeltaEncoder(int kind, const Bytes& source, const Bytes& base, std::size_t rows,
                 std::size_t columns, int effort, const Bytes& left, const Bytes& right, int floor,
                 bool is_rounded, bool is_strided) {
    nb::gil_scoped_release unlocked;
    codec_ = make_delta_encoder(kind, view_of(source), view_of(base), rows, columns, effort,
                                view_of(left), view_of(right), floor, is_rounded, is_strided);
  }

  nb::bytes prelude() const { return as_bytes(codec_->prelude); }
  int version() const { return codec_->version; }
  std::uint64_t estimated_bytes() const { return codec_->estimated_bytes; }

  nb::bytes encode(const Bytes& source, const Bytes& base, std::size_t row, std::size_t column,
                   std::size_t rows, std::size_t columns) const {
    View stream;
    {
      nb::gil_scoped_release unlocked;
      codec_->check_block(source.size(), base.size(), row, column, rows, columns);
      stream = codec_->encode(source.data(), base.data(), row, {rows, columns, column}, {}, {});
    }
    return as_bytes(stream);
  }

  Encoded encode_all(std::size_t rows_per_block, std::size_t parts, const Bytes& source,
                     const Bytes& base, const WritableBytes& out, std::size_t threads) const {
    nb::gil_scoped_release unlocked;
    return as_lists(deltahub::encode_all(*codec_, rows_per_block, parts, view_of(source),
                                         view_of(base), {out.data(), out.size()}, threads));
  }

 private:
  std::unique_ptr<DeltaEncoder> codec_;
};

std::pair<std::uint64_t, std::uint64_t> estimate_floats(int kind, const Bytes& source) {
  nb::gil_scoped_release unlocked;
  const FloatEstimate estimate = estimate_float_bytes(kind, view_of(source));
  return {estimate.bytes, estimate.lower_bound};
}

class FmDeltaDecoder {
 public:
  FmDeltaDecoder(int kind, const Bytes& prelude, std::size_t rows, std::size_t columns,
                 int version) {
    nb::gil_scoped_release unlocked;
    codec_ = make_delta_decoder(kind, view_of(prelude), rows, columns, version);
  }

  void decode(const Bytes& stream, const Bytes& base, const WritableBytes& out, std::size_t column,
              std::size_t rows, std::size_t columns) const {
    nb::gil_scoped_release unlocked;
    codec_->check_block(out.size(), base.size(), 0, column, rows, columns);
    if (!codec_
             ->decode({stream.data(), stream.size(), base.data(), out.data(), 0},
                      {rows, columns, column})
             .is_sound)
      throw std::invalid_argument("no encoder writes such a block");
  }

  Decoded decode_range(const BlockTable& table, std::size_t first, std::size_t end,
                       const Bytes& payload, const Bytes& base, const WritableBytes& out,
                       std::size_t threads) const {
    nb::gil_scoped_release unlocked;
    return decode_with(*codec_, table, first, end, payload, base, out, threads);
  }
  // Decodes with a decoder that is not kept. If it were a Python object, threads that decode small
  // frames would wait for the GIL twice as often.
  static Decoded decode_once(int kind, const Bytes& prelude, int version, const BlockTable& table,
                             std::size_t first, std::size_t end, const Bytes& payload,
                             const Bytes& base, const WritableBytes& out, std::size_t threads) {
    nb::gil_scoped_release unlocked;
    const auto codec = make_delta_decoder(kind, view_of(prelude), table.layout.rows,
                                          table.layout.columns, version);
    return decode_with(*codec, table, first, end, payload, base, out, threads);
  }

 private:
  static Decoded decode_with(const DeltaDecoder& codec, const BlockTable& table, std::size_t first,
                             std::size_t end, const Bytes& payload, const Bytes& base,
                             const WritableBytes& out, std::size_t threads) {
    return as_tuple(deltahub::decode_range(
        codec, table.layout.parts, BlockRange::of(table, first, end, threads), view_of(payload),
        view_of(base), {out.data(), out.size()}));
  }

  std::unique_ptr<DeltaDecoder> codec_;
};

class NeuzipEncoder {
 public:
  NeuzipEncoder(int kind, const Bytes& source) {
    nb::gil_scoped_release unlocked;
    codec_ = make_float_encoder(kind, view_of(source));
  }

  nb::bytes prelude() const { return as_bytes(codec_->prelude); }
  std::uint64_t estimated_bytes() const { return codec_->estimated_bytes; }

  nb::bytes encode(const Bytes& source) const {
    View stream;
    {
      nb::gil_scoped_release unlocked;
      stream = codec_->encode(view_of(source), {});
    }
    return as_bytes(stream);
  }

  Encoded encode_all(std::size_t rows, std::size_t columns, std::size_t rows_per_block,
                     std::size_t parts, const Bytes& source, const WritableBytes& out,
                     std::size_t threads) const {
    nb::gil_scoped_release unlocked;
    return as_lists(deltahub::encode_all(*codec_, rows, columns, rows_per_block, parts,
                                         view_of(source), {out.data(), out.size()}, threads));
  }

 private:
  std::unique_ptr<FloatEncoder> codec_;
};

class NeuzipDecoder {
 public:
  NeuzipDecoder(int kind, const Bytes& prelude)
      : codec_(make_float_decoder(kind, view_of(prelude))) {}

  void decode(const Bytes& stream, const WritableBytes& out) const {
    nb::gil_scoped_release unlocked;
    if (!codec_->decode({{stream.data(), stream.size()}, {out.data(), out.size()}, 0}).is_sound)
      throw std::invalid_argument("no encoder writes such a block");
  }

  Decoded decode_range(const BlockTable& table, std::size_t first, std::size_t end,
                       const Bytes& payload, const WritableBytes& out, std::size_t threads) const {
    nb::gil_scoped_release unlocked;
    return as_tuple(deltahub::decode_range(*codec_, BlockRange::of(table, first, end, threads),
                                           view_of(payload), {out.data(), out.size()}));
  }

 private:
  std::unique_ptr<FloatDecoder> codec_;
};

}  // namespace

void bind_codecs(nb::module_& m) {
  m.def("estimate_floats", &estimate_floats, "kind"_a, "source"_a,
        nb::sig("def estimate_floats(kind: int, source: " BUFFER ") -> tuple[int, int]"),
        "(estimate, lower bound) of the bytes that neuzip_lossless takes for these words.\n"
        "ValueError for the same words as NeuzipEncoder.");

  m.attr("FAULT_GUARD") = int(Fault::guard);
  m.attr("FAULT_STREAM") = int(Fault::stream);
  m.attr("FAULT_OTHER_BYTES") = int(Fault::other_bytes);

  nb::class_<BlockTable>(
      m, "BlockTable",
      "The block table of a frame: mode, stored length and checksum of each block.")
      .def(
          "__init__", &parse_table, "table"_a, "rows"_a, "columns"_a, "word_bytes"_a,
          "rows_per_block"_a, "parts"_a, "has_base"_a, "stored_bytes"_a,
          nb::sig("def __init__(self, table: " BUFFER ", rows: int, columns: int, word_bytes: int, "
                  "rows_per_block: int, parts: int, has_base: bool, stored_bytes: int) "
                  "-> None"),
          "Parses the rows of a block table. The frame has rows x columns words. Each block\n"
          "holds rows_per_block rows, or each row is divided into `parts` blocks. stored_bytes:\n"
          "of all blocks. ValueError if no encoder writes such a table for such a frame.")
      .def("rows", &rows_of, "first"_a, "end"_a,
           "(mode, stored length, checksum) of each of the blocks [first, end). ValueError if the\n"
           "frame has no such blocks.")
      .def("stored_span", &stored_span, "first"_a, "end"_a,
           "(begin, end) of blocks [first, end) in the stored bytes. ValueError if the frame has\n"
           "no such blocks.");

  m.def(
      "decode_uncoded_range", &decode_uncoded_range, "blocks"_a, "first"_a, "end"_a, "payload"_a,
      "base"_a, "out"_a, "threads"_a,
      nb::sig("def decode_uncoded_range(blocks: BlockTable, first: int, end: int, payload: " BUFFER
              ", base: " BUFFER ", out: bytearray | memoryview, threads: int) -> tuple[int, int]"),
      "Decodes blocks [first, end) of a frame without coded blocks; see\n"
      "FmDeltaDecoder.decode_range. base: empty if the frame has no base.");

  nb::class_<FmDeltaEncoder>(m, "FmDeltaEncoder",
                             "The model of one frame, ready to encode its blocks.")
      .def(nb::init<int, const Bytes&, const Bytes&, std::size_t, std::size_t, int, const Bytes&,
                    const Bytes&, int, bool, bool>(),
           "kind"_a, "source"_a, "base"_a, "rows"_a, "columns"_a, "effort"_a, "left"_a, "right"_a,
           "floor"_a, "is_rounded"_a, "is_strided"_a = false,
           nb::sig("def __init__(self, kind: int, source: " BUFFER ", base: " BUFFER
                   ", rows: int, columns: int, effort: int, left: " BUFFER ", right: " BUFFER
                   ", floor: int, is_rounded: bool, is_strided: bool = False) -> None"),
           "Plans the model of a frame. kind: see fm_delta.WORD_KINDS. effort: 1 to 3. left,\n"
           "right: int16 factors, rows x rank and rank x columns, or empty; floor: the exponent\n"
           "of the unit of their product; is_rounded: the product is rounded before it is added.\n"
           "is_strided: trailing zero bits that all words have in common are not coded.\n\n"
           "ValueError unless source and base are rows x columns words, and at least one.")
      .def_prop_ro("prelude", &FmDeltaEncoder::prelude)
      .def_prop_ro("version", &FmDeltaEncoder::version,
                   "The version of fm_delta that this prelude has.")
      .def_prop_ro("estimated_bytes", &FmDeltaEncoder::estimated_bytes,
                   "An estimate for prelude and blocks.")
      .def("encode", &FmDeltaEncoder::encode, "source"_a, "base"_a, "row"_a, "column"_a, "rows"_a,
           "columns"_a,
           nb::sig("def encode(self, source: " BUFFER ", base: " BUFFER
                   ", row: int, column: int, rows: int, columns: int) -> bytes"),
           "The stream of one block. source, base: the words of the block, a rectangle of the\n"
           "frame that begins at this row and column.")
      .def("encode_all", &FmDeltaEncoder::encode_all, "rows_per_block"_a, "parts"_a, "source"_a,
           "base"_a, "out"_a, "threads"_a,
           nb::sig("def encode_all(self, rows_per_block: int, parts: int, source: " BUFFER
                   ", base: " BUFFER ", out: bytearray | memoryview, threads: int) "
                   "-> tuple[list[int], list[int], list[int]]"),
           "Encodes all blocks of the frame. Fills `out` from its beginning with their stored\n"
           "bytes, guards included, and returns (modes, stored lengths, checksums).\n"
           "rows_per_block, parts: see BlockTable. The result is the same for any number of\n"
           "threads. ValueError unless the sizes match and `out` is at least as large as the\n"
           "source.");

  nb::class_<FmDeltaDecoder>(m, "FmDeltaDecoder", "The model of a prelude, ready to decode blocks.")
      .def(nb::init<int, const Bytes&, std::size_t, std::size_t, int>(), "kind"_a, "prelude"_a,
           "rows"_a, "columns"_a, "version"_a = first_delta_version,
           nb::sig("def __init__(self, kind: int, prelude: " BUFFER
                   ", rows: int, columns: int, version: int = 1) -> None"),
           "ValueError if no encoder of this version of fm_delta writes such a prelude for a\n"
           "frame of rows x columns words.")
      .def("decode", &FmDeltaDecoder::decode, "stream"_a, "base"_a, "out"_a, "column"_a, "rows"_a,
           "columns"_a,
           nb::sig("def decode(self, stream: " BUFFER ", base: " BUFFER
                   ", out: bytearray | memoryview, column: int, rows: int, columns: int) -> None"),
           "Fills `out` with one block of rows x columns words, which begins at this column of\n"
           "the frame. ValueError if no encoder writes such a stream.")
      .def("decode_range", &FmDeltaDecoder::decode_range, "blocks"_a, "first"_a, "end"_a,
           "payload"_a, "base"_a, "out"_a, "threads"_a,
           nb::sig(
               "def decode_range(self, blocks: BlockTable, first: int, end: int, payload: " BUFFER
               ", base: " BUFFER ", out: bytearray | memoryview, threads: int) "
               "-> tuple[int, int]"),
           "Fills `out` with blocks [first, end). payload: their stored bytes, guards included.\n"
           "Returns the number of intact blocks before the first damaged one, and its fault\n"
           "(FAULT_*, or 0 if all are intact); the rest of `out` is then arbitrary. ValueError\n"
           "unless the sizes match.")
      .def_static(
          "decode_once", &FmDeltaDecoder::decode_once, "kind"_a, "prelude"_a, "version"_a,
          "blocks"_a, "first"_a, "end"_a, "payload"_a, "base"_a, "out"_a, "threads"_a,
          nb::sig("def decode_once(kind: int, prelude: " BUFFER
                  ", version: int, blocks: BlockTable, first: int, end: int, payload: " BUFFER
                  ", base: " BUFFER ", out: bytearray | memoryview, threads: int) "
                  "-> tuple[int, int]"),
          "The same as FmDeltaDecoder(...).decode_range(...), without making an object.\n"
          "ValueError as from both.");

  nb::class_<NeuzipEncoder>(m, "NeuzipEncoder",
                            "The table of one frame, ready to encode its blocks.")
      .def(nb::init<int, const Bytes&>(), "kind"_a, "source"_a,
           nb::sig("def __init__(self, kind: int, source: " BUFFER ") -> None"),
           "Plans the table of a frame from counts of its exponents and highest mantissa bits.\n"
           "ValueError if the words are not floats, or have more exponents than a table holds.")
      .def_prop_ro("prelude", &NeuzipEncoder::prelude)
      .def_prop_ro("estimated_bytes", &NeuzipEncoder::estimated_bytes)
      .def("encode", &NeuzipEncoder::encode, "source"_a,
           nb::sig("def encode(self, source: " BUFFER ") -> bytes"), "The stream of one block.")
      .def("encode_all", &NeuzipEncoder::encode_all, "rows"_a, "columns"_a, "rows_per_block"_a,
           "parts"_a, "source"_a, "out"_a, "threads"_a,
           nb::sig("def encode_all(self, rows: int, columns: int, rows_per_block: int, parts: int, "
                   "source: " BUFFER ", out: bytearray | memoryview, threads: int) "
                   "-> tuple[list[int], list[int], list[int]]"),
           "Encodes all blocks of a frame of rows x columns words: see FmDeltaEncoder.encode_all.");

  nb::class_<NeuzipDecoder>(m, "NeuzipDecoder", "The table of a prelude, ready to decode blocks.")
      .def(nb::init<int, const Bytes&>(), "kind"_a, "prelude"_a,
           nb::sig("def __init__(self, kind: int, prelude: " BUFFER ") -> None"),
           "ValueError if no encoder writes such a prelude.")
      .def("decode", &NeuzipDecoder::decode, "stream"_a, "out"_a,
           nb::sig("def decode(self, stream: " BUFFER ", out: bytearray | memoryview) -> None"),
           "Fills `out` with one block. ValueError if no encoder writes such a stream.")
      .def("decode_range", &NeuzipDecoder::decode_range, "blocks"_a, "first"_a, "end"_a,
           "payload"_a, "out"_a, "threads"_a,
           nb::sig("def decode_range(self, blocks: BlockTable, first: int, end: int, "
                   "payload: " BUFFER ", out: bytearray | memoryview, threads: int) "
                   "-> tuple[int, int]"),
           "Decodes blocks [first, end): see FmDeltaDecoder.decode_range.");
}

}  // namespace deltahub
