#include "bindings/parts.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <vector>

#include "bindings/buffers.hpp"
#include "frames/delta_frame.hpp"
#include "kernels/dispatch.hpp"
#include "low_rank/search.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace deltahub {
namespace {

// std::invalid_argument unless both are rows x columns words of 16 bits.
void require_words(View words, View base, std::size_t rows, std::size_t columns) {
  require(rows > 0 && columns > 0 && rows <= words.size() / 2 / columns &&
              words.size() == rows * columns * 2 && base.size() == words.size(),
          "words and base must be rows x columns words");
}

std::optional<nb::bytes> encode_delta_frame(int kind, const Bytes& source, const Bytes& base,
                                            std::size_t rows, std::size_t columns,
                                            std::size_t rows_per_block, std::size_t parts,
                                            const Bytes& header, std::uint64_t size_limit,
                                            int effort, std::size_t threads) {
  require(effort == int(Effort::fast) || effort == int(Effort::balanced), "no such effort here");
  std::optional<DeltaFrame> frame;
  {
    nb::gil_scoped_release unlocked;
    LowRank low_rank;
    if (Effort(effort) != Effort::fast) {
      if (word_kind(kind) != WordKind::bf16) return {};
      const View words = view_of(source), base_view = view_of(base);
      require_words(words, base_view, rows, columns);
      if (common_stride(kind, words, base_view) > 0) return {};
      low_rank = find_low_rank(*chosen_kernels(), chosen_search(), WordKind::bf16, words,
                               base_view, rows, columns, false)
                     .low_rank;
    }
    frame.emplace(kind, view_of(source), view_of(base), rows, columns, rows_per_block, parts,
                  view_of(header), size_limit, Effort(effort), low_rank);
    if (!frame->pays()) return {};
  }
  PyObject* bytes = PyBytes_FromStringAndSize(nullptr, Py_ssize_t(frame->max_bytes()));
  if (!bytes) nb::raise_python_error();
  nb::object owner = nb::steal(bytes);
  auto* const out = reinterpret_cast<std::uint8_t*>(PyBytes_AS_STRING(bytes));
  std::optional<std::size_t> length;
  {
    nb::gil_scoped_release unlocked;
    length = frame->write({out, frame->max_bytes()}, threads);
  }
  if (!length) return {};
  bytes = owner.release().ptr();  // the only reference, so that the object may be resized
  if (_PyBytes_Resize(&bytes, Py_ssize_t(*length)) != 0) nb::raise_python_error();
  return nb::steal<nb::bytes>(bytes);
}

std::uint64_t estimate_deltas(int kind, const Bytes& source, const Bytes& base,
                              const std::vector<std::size_t>& begins, std::size_t n) {
  nb::gil_scoped_release unlocked;
  return estimate_delta_bytes(kind, view_of(source), view_of(base), begins, n);
}

unsigned stride_of(int kind, const Bytes& source, const Bytes& base) {
  nb::gil_scoped_release unlocked;
  return common_stride(kind, view_of(source), view_of(base));
}

}  // namespace

void bind_frames(nb::module_& m) {
  m.def(
      "estimate_deltas", &estimate_deltas, "kind"_a, "source"_a, "base"_a, "begins"_a, "n"_a,
      nb::sig("def estimate_deltas(kind: int, source: " BUFFER ", base: " BUFFER
              ", begins: list[int], n: int) -> int"),
      "An estimate of the bytes that fm_delta takes for ranges of n words, from a sample of them.\n"
      "kind: see fm_delta.WORD_KINDS. begins: the first byte of each range. n: a multiple of 64.\n"
      "ValueError unless source and base contain these ranges.");

  m.def("common_stride", &stride_of, "kind"_a, "source"_a, "base"_a,
        nb::sig("def common_stride(kind: int, source: " BUFFER ", base: " BUFFER ") -> int"),
        "The number of trailing zero bits that all words of both have in common and that fm_delta\n"
        "need not code. ValueError unless both have the same number of words.");

  m.def(
      "encode_delta_frame", &encode_delta_frame, "kind"_a, "source"_a, "base"_a, "rows"_a,
      "columns"_a, "rows_per_block"_a, "parts"_a, "header"_a, "most"_a, "effort"_a, "threads"_a,
      nb::sig("def encode_delta_frame(kind: int, source: " BUFFER ", base: " BUFFER
              ", rows: int, columns: int, rows_per_block: int, parts: int, header: " BUFFER
              ", most: int, effort: int, threads: int) -> bytes | None"),
      "Encodes a whole fm_delta frame, if it is clear that a frame without a base would be\n"
      "larger. The plan is that of FmDeltaEncoder; at effort 2 the factors are those of\n"
      "find_low_rank. header: without its checksum, and with zeros for the lengths of prelude\n"
      "and body. most: the frame must be smaller than this many bytes. effort: 1 or 2. The\n"
      "result is the same for any number of threads.\n\n"
      "None if the words are not floats, if the frame would not be smaller than `most`, or if\n"
      "a sample of the words does not show that they take more without the base. At effort 2\n"
      "also None for words of another dtype than BF16, or with a common stride. ValueError\n"
      "unless the sizes match.");
}

}  // namespace deltahub
