// The Python face of the codecs: checks sizes, owns buffers, drops the GIL, raises.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/byte_groups.hpp"
#include "bindings/frames.hpp"
#include "bindings/low_rank.hpp"
#include "frames/block_table.hpp"
#include "frames/decode_blocks.hpp"
#include "frames/delta_codec.hpp"
#include "frames/encode_blocks.hpp"
#include "frames/float_codec.hpp"
#include "kernels/dispatch.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace deltahub {
namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WritableBytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const Kernels* kernels : supported_kernels()) names.push_back(kernels->name);
  return names;
}

void use_kernels(const std::string& name) {
  for (const Kernels* kernels : supported_kernels())
    if (name == kernels->name) {
      chosen_kernels() = kernels;
      return;
    }
  throw nb::value_error("this processor has no such kernels");
}

nb::bytes as_bytes(View bytes) {
  return nb::bytes(bytes.data(), bytes.size());
}

nb::bytes bytes_to_fill(std::size_t size) {
  PyObject* const bytes = PyBytes_FromStringAndSize(nullptr, Py_ssize_t(size));
  if (!bytes) nb::raise_python_error();
  return nb::steal<nb::bytes>(bytes);
}

// (modes, lengths of stored bytes, checksums)
using Encoded =
    std::tuple<std::vector<std::uint8_t>, std::vector<std::size_t>, std::vector<std::uint64_t>>;

Encoded as_lists(EncodedRun&& run) {
  return {std::move(run.modes), std::move(run.lengths), std::move(run.checksums)};
}

// (how many blocks are intact before the first one with a fault, which fault)
using Decoded = std::tuple<std::size_t, int>;

Decoded as_numbers(const Found& found) { return {found.n_intact, int(found.fault)}; }

void read_table(BlockTable* table, const Bytes& bytes, std::size_t rows, std::size_t columns,
                std::size_t word_bytes, std::size_t rows_per_block, std::size_t parts,
                bool has_base, std::uint64_t stored_bytes) {
  new (table) BlockTable({bytes.data(), bytes.size()},
                         {rows, columns, word_bytes, rows_per_block, parts}, has_base,
                         stored_bytes);
}

// (mode, stored bytes, checksum) of each block
using Rows = std::vector<std::tuple<std::uint8_t, std::size_t, std::uint64_t>>;

Rows rows_of(const BlockTable& table, std::size_t first, std::size_t end) {
  const BlockRun run = BlockRun::of(table, first, end, 1);
  Rows rows;
  for (std::size_t i = 0; i < run.modes.size(); ++i)
    rows.emplace_back(run.modes[i], run.lengths[i], run.checksums[i]);
  return rows;
}

std::pair<std::size_t, std::size_t> stored_span(const BlockTable& table, std::size_t first,
                                                std::size_t end) {
  require(first < end && end <= table.n_blocks(), "no such blocks in the frame");
  return {table.stored_begin(first), table.ends[end - 1]};
}

Decoded decode_plain_run(const BlockTable& table, std::size_t first, std::size_t end,
                         const Bytes& payload, const Bytes& base, const WritableBytes& out,
                         std::size_t threads) {
  nb::gil_scoped_release unlocked;
  return as_numbers(deltahub::decode_run(
      BlockRun::of(table, first, end, threads), {payload.data(), payload.size()},
      {base.data(), base.size()}, {out.data(), out.size()}));
}

class FmDeltaEncoder {
 public:
  FmDeltaEncoder(int kind, const Bytes& source, const Bytes& base, std::size_t rows,
                 std::size_t columns, int effort, const Bytes& left, const Bytes& right, int floor,
                 bool is_rounded, bool is_strided) {
    nb::gil_scoped_release unlocked;
    codec_ = planned_deltas(kind, {source.data(), source.size()}, {base.data(), base.size()}, rows,
                            columns, effort, {left.data(), left.size()},
                            {right.data(), right.size()}, floor, is_rounded, is_strided);
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

  Encoded encode_run(std::size_t rows_per_block, std::size_t parts, const Bytes& source,
                     const Bytes& base, const WritableBytes& out, std::size_t threads) const {
    nb::gil_scoped_release unlocked;
    return as_lists(deltahub::encode_run(*codec_, rows_per_block, parts,
                                         {source.data(), source.size()},
                                         {base.data(), base.size()}, {out.data(), out.size()},
                                         threads));
  }

 private:
  std::unique_ptr<DeltaEncoder> codec_;
};

void join_groups(const Bytes& grouped, const WritableBytes& out) {
  if (out.size() != grouped.size()) throw std::invalid_argument("both must have the same size");
  nb::gil_scoped_release unlocked;
  join_byte_groups(grouped.data(), grouped.size(), out.data());
}

std::pair<std::uint64_t, std::uint64_t> estimate_floats(int kind, const Bytes& source) {
  nb::gil_scoped_release unlocked;
  const FloatEstimate estimate = estimated_floats(kind, {source.data(), source.size()});
  return {estimate.bytes, estimate.least_bytes};
}

class FmDeltaDecoder {
 public:
  FmDeltaDecoder(int kind, const Bytes& prelude, std::size_t rows, std::size_t columns,
                 int version) {
    nb::gil_scoped_release unlocked;
    codec_ = parsed_deltas(kind, {prelude.data(), prelude.size()}, rows, columns, version);
  }

  void decode(const Bytes& stream, const Bytes& base, const WritableBytes& out, std::size_t column,
              std::size_t rows, std::size_t columns) const {
    nb::gil_scoped_release unlocked;
    codec_->check_block(out.size(), base.size(), 0, column, rows, columns);
    if (!codec_->decode({stream.data(), stream.size(), base.data(), out.data(), 0},
                        {rows, columns, column})
             .is_sound)
      throw std::invalid_argument("no encoder writes such a block");
  }

  Decoded decode_run(const BlockTable& table, std::size_t first, std::size_t end,
                     const Bytes& payload, const Bytes& base, const WritableBytes& out,
                     std::size_t threads) const {
    nb::gil_scoped_release unlocked;
    return run_by(*codec_, table, first, end, payload, base, out, threads);
  }
  // Of a decoder that nobody needs again. Threads that decode small frames would wait for each other
  // twice as often if it were an object of Python's.
  static Decoded decode_once(int kind, const Bytes& prelude, int version, const BlockTable& table,
                             std::size_t first, std::size_t end, const Bytes& payload,
                             const Bytes& base, const WritableBytes& out, std::size_t threads) {
    nb::gil_scoped_release unlocked;
    const auto codec = parsed_deltas(kind, {prelude.data(), prelude.size()}, table.cut.rows,
                                     table.cut.columns, version);
    return run_by(*codec, table, first, end, payload, base, out, threads);
  }

 private:
  static Decoded run_by(const DeltaDecoder& codec, const BlockTable& table, std::size_t first,
                        std::size_t end, const Bytes& payload, const Bytes& base,
                        const WritableBytes& out, std::size_t threads) {
    return as_numbers(deltahub::decode_run(
        codec, table.cut.parts, BlockRun::of(table, first, end, threads),
        {payload.data(), payload.size()}, {base.data(), base.size()}, {out.data(), out.size()}));
  }

  std::unique_ptr<DeltaDecoder> codec_;
};

class NeuzipEncoder {
 public:
  NeuzipEncoder(int kind, const Bytes& source) {
    nb::gil_scoped_release unlocked;
    codec_ = planned_floats(kind, {source.data(), source.size()});
  }

  nb::bytes prelude() const { return as_bytes(codec_->prelude); }
  std::uint64_t estimated_bytes() const { return codec_->estimated_bytes; }

  nb::bytes encode(const Bytes& source) const {
    View stream;
    {
      nb::gil_scoped_release unlocked;
      stream = codec_->encode({source.data(), source.size()}, {});
    }
    return as_bytes(stream);
  }

  Encoded encode_run(std::size_t rows, std::size_t columns, std::size_t rows_per_block,
                     std::size_t parts, const Bytes& source, const WritableBytes& out,
                     std::size_t threads) const {
    nb::gil_scoped_release unlocked;
    return as_lists(deltahub::encode_run(*codec_, rows, columns, rows_per_block, parts,
                                         {source.data(), source.size()}, {out.data(), out.size()},
                                         threads));
  }

 private:
  std::unique_ptr<FloatEncoder> codec_;
};

class NeuzipDecoder {
 public:
  NeuzipDecoder(int kind, const Bytes& prelude)
      : codec_(parsed_floats(kind, {prelude.data(), prelude.size()})) {}

  void decode(const Bytes& stream, const WritableBytes& out) const {
    nb::gil_scoped_release unlocked;
    if (!codec_->decode({{stream.data(), stream.size()}, {out.data(), out.size()}, 0}).is_sound)
      throw std::invalid_argument("no encoder writes such a block");
  }

  Decoded decode_run(const BlockTable& table, std::size_t first, std::size_t end,
                     const Bytes& payload, const WritableBytes& out, std::size_t threads) const {
    nb::gil_scoped_release unlocked;
    return as_numbers(deltahub::decode_run(*codec_, BlockRun::of(table, first, end, threads),
                                           {payload.data(), payload.size()},
                                           {out.data(), out.size()}));
  }

 private:
  std::unique_ptr<FloatDecoder> codec_;
};

}  // namespace
}  // namespace deltahub

// Stubs name the buffers by what callers hold; nanobind's own names need numpy arrays.
#define BUFFER "bytes | bytearray | memoryview"

NB_MODULE(_native, m) {
  using namespace deltahub;
  m.doc() = "Native kernels of deltahub.codecs.";
  // A thread that still reads a frame when its process ends has block tables: no fault to tell of.
  nb::set_leak_warnings(false);

  m.def("kernel_names", &kernel_names,
        "The sets of kernels that this processor can run, from the slowest to the fastest.");
  m.def("use_kernels", &use_kernels, "name"_a,
        "From now on encoders and decoders that are made use these kernels. ValueError where the\n"
        "processor cannot run them. All sets write and read the same bytes.");

  m.def("join_byte_groups", &join_groups, "grouped"_a, "out"_a,
        nb::sig("def join_byte_groups(grouped: " BUFFER ", out: bytearray | memoryview) -> None"),
        "Fills `out` with the bytes of `grouped`, where bytes 0, 4, 8... of it come first, then 1,\n"
        "5, 9..., and so on. The two do not overlap. ValueError unless they have the same size.");

  m.def("bytes_to_fill", &bytes_to_fill, "size"_a,
        "Bytes of any values, for an io.BytesIO that takes them over and writes what is read: to\n"
        "clear them would cost as much as to copy them.");

  m.def("estimate_floats", &estimate_floats, "kind"_a, "source"_a,
        nb::sig("def estimate_floats(kind: int, source: " BUFFER ") -> tuple[int, int]"),
        "(about how many bytes neuzip_lossless takes for these words, how many at least), counted as\n"
        "NeuzipEncoder does. ValueError where that one raises it.");

  m.attr("FAULT_GUARD") = int(Fault::guard);
  m.attr("FAULT_STREAM") = int(Fault::stream);
  m.attr("FAULT_OTHER_BYTES") = int(Fault::other_bytes);

  nb::class_<BlockTable>(m, "BlockTable", "How each block of a frame is stored, and where.")
      .def("__init__", &read_table, "table"_a, "rows"_a, "columns"_a, "word_bytes"_a,
           "rows_per_block"_a, "parts"_a, "has_base"_a, "stored_bytes"_a,
           nb::sig("def __init__(self, table: " BUFFER ", rows: int, columns: int, word_bytes: int, "
                   "rows_per_block: int, parts: int, has_base: bool, stored_bytes: int) "
                   "-> None"),
           "Reads the rows of a block table. The frame has rows x columns words; its blocks have so\n"
           "many rows each, or are so many parts of one, and take so many stored bytes. ValueError\n"
           "where no encoder writes such a table for it.")
      .def("rows", &rows_of, "first"_a, "end"_a,
           "(mode, stored bytes, checksum) of blocks [first, end). ValueError where there are none.")
      .def("stored_span", &stored_span, "first"_a, "end"_a,
           "(begin, end) of blocks [first, end) among the stored bytes. ValueError where there are\n"
           "none.");

  m.def("decode_plain_run", &decode_plain_run, "blocks"_a, "first"_a, "end"_a, "payload"_a,
        "base"_a, "out"_a, "threads"_a,
        nb::sig("def decode_plain_run(blocks: BlockTable, first: int, end: int, payload: " BUFFER
                ", base: " BUFFER ", out: bytearray | memoryview, threads: int) -> tuple[int, int]"),
        "Blocks [first, end) of a frame in which none is coded, as FmDeltaDecoder.decode_run. base:\n"
        "empty for a frame without one.");

  nb::class_<FmDeltaEncoder>(m, "FmDeltaEncoder",
                             "The model of one frame, ready to encode its blocks.")
      .def(nb::init<int, const Bytes&, const Bytes&, std::size_t, std::size_t, int, const Bytes&,
                    const Bytes&, int, bool, bool>(),
           "kind"_a, "source"_a, "base"_a, "rows"_a, "columns"_a, "effort"_a, "left"_a, "right"_a,
           "floor"_a, "is_rounded"_a, "is_strided"_a = false,
           nb::sig("def __init__(self, kind: int, source: " BUFFER ", base: " BUFFER
                   ", rows: int, columns: int, effort: int, left: " BUFFER ", right: " BUFFER
                   ", floor: int, is_rounded: bool, is_strided: bool = False) -> None"),
           "Plans the model from the words of a frame. kind: see fm_delta.WORD_KINDS. effort: 1 to\n"
           "3. left, right: int16 factors, rows x rank and rank x columns, or empty; floor: the\n"
           "exponent of their unit; is_rounded: their product is rounded before it is added;\n"
           "is_strided: digits at the end that are zero in all words are left out.\n\n"
           "ValueError unless source and base are rows x columns words, at least one.")
      .def_prop_ro("prelude", &FmDeltaEncoder::prelude)
      .def_prop_ro("version", &FmDeltaEncoder::version, "The codec's, of this prelude.")
      .def_prop_ro("estimated_bytes", &FmDeltaEncoder::estimated_bytes,
                   "About what prelude and coded blocks will take.")
      .def("encode", &FmDeltaEncoder::encode, "source"_a, "base"_a, "row"_a, "column"_a, "rows"_a,
           "columns"_a,
           nb::sig("def encode(self, source: " BUFFER ", base: " BUFFER
                   ", row: int, column: int, rows: int, columns: int) -> bytes"),
           "The stream of one block: a rectangle of the frame, whose words are given.")
      .def("encode_run", &FmDeltaEncoder::encode_run, "rows_per_block"_a, "parts"_a, "source"_a,
           "base"_a, "out"_a, "threads"_a,
           nb::sig("def encode_run(self, rows_per_block: int, parts: int, source: " BUFFER
                   ", base: " BUFFER ", out: bytearray | memoryview, threads: int) "
                   "-> tuple[list[int], list[int], list[int]]"),
           "Fills `out` from its beginning with all blocks of the frame as they are stored, guards\n"
           "included, and gives their modes, stored lengths and checksums. A block has so many rows\n"
           "or is one of so many parts of a row. ValueError unless the sizes fit, and `out` has\n"
           "room for the source. The result is the same for any number of threads.");

  nb::class_<FmDeltaDecoder>(m, "FmDeltaDecoder", "A prelude's model, ready to decode blocks.")
      .def(nb::init<int, const Bytes&, std::size_t, std::size_t, int>(), "kind"_a, "prelude"_a,
           "rows"_a, "columns"_a, "version"_a = first_delta_version,
           nb::sig("def __init__(self, kind: int, prelude: " BUFFER
                   ", rows: int, columns: int, version: int = 1) -> None"),
           "ValueError where no encoder of this version of the codec writes such a prelude for a\n"
           "frame of rows x columns words.")
      .def("decode", &FmDeltaDecoder::decode, "stream"_a, "base"_a, "out"_a, "column"_a, "rows"_a,
           "columns"_a,
           nb::sig("def decode(self, stream: " BUFFER ", base: " BUFFER
                   ", out: bytearray | memoryview, column: int, rows: int, columns: int) -> None"),
           "Fills `out` with one block of rows x columns words, from a column of the frame on.\n"
           "ValueError where no encoder writes such a stream.")
      .def("decode_run", &FmDeltaDecoder::decode_run, "blocks"_a, "first"_a, "end"_a, "payload"_a,
           "base"_a, "out"_a, "threads"_a,
           nb::sig("def decode_run(self, blocks: BlockTable, first: int, end: int, payload: " BUFFER
                   ", base: " BUFFER ", out: bytearray | memoryview, threads: int) "
                   "-> tuple[int, int]"),
           "Fills `out` with blocks [first, end), guards included. How many of them are intact\n"
           "before the first one with a fault, and which (FAULT_*, or 0); the rest of `out` is then\n"
           "worthless. ValueError unless the sizes fit.")
      .def_static("decode_once", &FmDeltaDecoder::decode_once, "kind"_a, "prelude"_a, "version"_a,
                  "blocks"_a, "first"_a, "end"_a, "payload"_a, "base"_a, "out"_a, "threads"_a,
                  nb::sig("def decode_once(kind: int, prelude: " BUFFER
                          ", version: int, blocks: BlockTable, first: int, end: int, payload: " BUFFER
                          ", base: " BUFFER ", out: bytearray | memoryview, threads: int) "
                          "-> tuple[int, int]"),
                  "decode_run by this prelude's model, which is not kept. ValueError as of both.");

  nb::class_<NeuzipEncoder>(m, "NeuzipEncoder", "The table of one frame.")
      .def(nb::init<int, const Bytes&>(), "kind"_a, "source"_a,
           nb::sig("def __init__(self, kind: int, source: " BUFFER ") -> None"),
           "Counts the exponents of a frame, and what goes with them. ValueError for words that are\n"
           "no floats, and where they have more exponents than a table holds.")
      .def_prop_ro("prelude", &NeuzipEncoder::prelude)
      .def_prop_ro("estimated_bytes", &NeuzipEncoder::estimated_bytes)
      .def("encode", &NeuzipEncoder::encode, "source"_a,
           nb::sig("def encode(self, source: " BUFFER ") -> bytes"), "The stream of one block.")
      .def("encode_run", &NeuzipEncoder::encode_run, "rows"_a, "columns"_a, "rows_per_block"_a,
           "parts"_a, "source"_a, "out"_a, "threads"_a,
           nb::sig("def encode_run(self, rows: int, columns: int, rows_per_block: int, parts: int, "
                   "source: " BUFFER ", out: bytearray | memoryview, threads: int) "
                   "-> tuple[list[int], list[int], list[int]]"),
           "All blocks of a frame of rows x columns words, as FmDeltaEncoder.encode_run.");

  nb::class_<NeuzipDecoder>(m, "NeuzipDecoder", "A prelude's table, ready to decode blocks.")
      .def(nb::init<int, const Bytes&>(), "kind"_a, "prelude"_a,
           nb::sig("def __init__(self, kind: int, prelude: " BUFFER ") -> None"),
           "ValueError where no encoder writes such a prelude.")
      .def("decode", &NeuzipDecoder::decode, "stream"_a, "out"_a,
           nb::sig("def decode(self, stream: " BUFFER ", out: bytearray | memoryview) -> None"),
           "Fills `out` with one block. ValueError where no encoder writes such a stream.")
      .def("decode_run", &NeuzipDecoder::decode_run, "blocks"_a, "first"_a, "end"_a, "payload"_a,
           "out"_a, "threads"_a,
           nb::sig("def decode_run(self, blocks: BlockTable, first: int, end: int, payload: " BUFFER
                   ", out: bytearray | memoryview, threads: int) -> tuple[int, int]"),
           "Blocks [first, end), as FmDeltaDecoder.decode_run.");

  bind_frames(m);
  bind_search(m);
}
