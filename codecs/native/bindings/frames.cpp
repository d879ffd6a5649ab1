#include "bindings/frames.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <vector>

#include "frames/delta_frame.hpp"
#include "kernels/dispatch.hpp"
#include "low_rank/search.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace deltahub {
namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

View view_of(const Bytes& bytes) { return {bytes.data(), bytes.size()}; }

// Words of 16 bits.
void require_words(View words, View base, std::size_t rows, std::size_t columns) {
  require(rows > 0 && columns > 0 && rows <= words.size() / 2 / columns &&
              words.size() == rows * columns * 2 && base.size() == words.size(),
          "words and base must be rows x columns words");
}

std::optional<nb::bytes> encode_clear_delta(int kind, const Bytes& source, const Bytes& base,
                                            std::size_t rows, std::size_t columns,
                                            std::size_t rows_per_block, std::size_t parts,
                                            const Bytes& header, std::uint64_t most,
                                            int effort, std::size_t threads) {
  require(effort == int(Effort::fast) || effort == int(Effort::balanced), "no such effort here");
  std::optional<DeltaFrame> frame;
  {
    nb::gil_scoped_release unlocked;
    LowRank low_rank;
    if (Effort(effort) != Effort::fast) {
      if (!is_fit_in_directions(int(word_kind(kind)), rows, columns)) return {};
      const View words = view_of(source), near = view_of(base);
      require_words(words, near, rows, columns);
      if (common_stride(kind, words, near) > 0) return {};
      auto found = fit_in_directions(*chosen_kernels(), chosen_search(), words, near, rows, columns);
      if (found.is_worth_more) return {};
      low_rank = std::move(found.low_rank);
    }
    frame.emplace(kind, view_of(source), view_of(base), rows, columns, rows_per_block, parts,
                  view_of(header), most, Effort(effort), low_rank);
    if (!frame->pays()) return {};
  }
  PyObject* bytes = PyBytes_FromStringAndSize(nullptr, Py_ssize_t(frame->room()));
  if (!bytes) nb::raise_python_error();
  nb::object owner = nb::steal(bytes);
  auto* const out = reinterpret_cast<std::uint8_t*>(PyBytes_AS_STRING(bytes));
  std::optional<std::size_t> length;
  {
    nb::gil_scoped_release unlocked;
    length = frame->write({out, frame->room()}, threads);
  }
  if (!length) return {};
  bytes = owner.release().ptr();  // nobody else has it yet, so that it may still shrink
  if (_PyBytes_Resize(&bytes, Py_ssize_t(*length)) != 0) nb::raise_python_error();
  return nb::steal<nb::bytes>(bytes);
}

std::uint64_t estimate_deltas(int kind, const Bytes& source, const Bytes& base,
                              const std::vector<std::size_t>& begins, std::size_t n) {
  nb::gil_scoped_release unlocked;
  return estimated_deltas(kind, view_of(source), view_of(base), begins, n);
}

unsigned stride_of(int kind, const Bytes& source, const Bytes& base) {
  nb::gil_scoped_release unlocked;
  return common_stride(kind, view_of(source), view_of(base));
}

}  // namespace

// Stubs name the buffers by what callers hold; nanobind's own names need numpy arrays.
#define BUFFER "bytes | bytearray | memoryview"

void bind_frames(nb::module_& m) {
  m.def("estimate_deltas", &estimate_deltas, "kind"_a, "source"_a, "base"_a, "begins"_a, "n"_a,
        nb::sig("def estimate_deltas(kind: int, source: " BUFFER ", base: " BUFFER
                ", begins: list[int], n: int) -> int"),
        "About how many bytes fm_delta takes for runs of n words, found by counting some of them.\n"
        "kind: see fm_delta.WORD_KINDS. begins: where the runs begin, in bytes. n: a multiple of 64.\n"
        "ValueError unless both hold these runs.");

  m.def("common_stride", &stride_of, "kind"_a,
        "source"_a, "base"_a,
        nb::sig("def common_stride(kind: int, source: " BUFFER ", base: " BUFFER ") -> int"),
        "How many digits at the end are zero in all words of both, as far as fm_delta leaves them\n"
        "out. ValueError unless both are as many words.");

  m.def("encode_clear_delta", &encode_clear_delta, "kind"_a, "source"_a, "base"_a, "rows"_a,
        "columns"_a, "rows_per_block"_a, "parts"_a, "header"_a, "most"_a, "effort"_a, "threads"_a,
        nb::sig("def encode_clear_delta(kind: int, source: " BUFFER ", base: " BUFFER
                ", rows: int, columns: int, rows_per_block: int, parts: int, header: " BUFFER
                ", most: int, effort: int, threads: int) -> bytes | None"),
        "A whole frame of fm_delta, planned as FmDeltaEncoder does and cut as its encode_run does;\n"
        "effort: 1, or 2, with what fit_directions finds. None for words that are no floats, where it\n"
        "would have `most` bytes or more, and where a little of the words does not say clearly that\n"
        "they take more without the base; at effort 2 for words that fit_directions does not take or\n"
        "that have a common stride, too, and where it pays to look closer. header: the frame's, without\n"
        "its checksum, and with zeros for the lengths of prelude and body. The result is the same for\n"
        "any number of threads. ValueError unless the sizes fit.");
}

}  // namespace deltahub
