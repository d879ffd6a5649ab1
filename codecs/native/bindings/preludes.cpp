#include "bindings/parts.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "bindings/buffers.hpp"
#include "frames/prelude_model.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace deltahub {
namespace {

template <class T>
nb::bytes as_bytes(const std::vector<T>& numbers) {
  return nb::bytes(numbers.data(), numbers.size() * sizeof(T));
}

// A property that has the bytes of a vector.
template <auto MEMBER>
nb::bytes bytes_of(const PreludeModel& model) {
  return as_bytes(model.*MEMBER);
}

PreludeModel of_floats(int kind, const Bytes& prelude) {
  nb::gil_scoped_release unlocked;
  return model_of_float_prelude(kind, view_of(prelude));
}

PreludeModel of_deltas(int kind, const Bytes& prelude, std::size_t rows, std::size_t columns,
                       int version) {
  nb::gil_scoped_release unlocked;
  return model_of_delta_prelude(kind, view_of(prelude), rows, columns, version);
}

}  // namespace

void bind_preludes(nb::module_& m) {
  nb::class_<PreludeModel>(
      m, "PreludeModel",
      "What a prelude says, as plain numbers, for decoders on GPUs. A context is the first entry\n"
      "of its table, times 64, plus its shift. Bytes hold little endian numbers.")
      .def_static("of_floats", &of_floats, "kind"_a, "prelude"_a,
                  nb::sig("def of_floats(kind: int, prelude: " BUFFER ") -> PreludeModel"),
                  "The model of a prelude of neuzip_lossless. ValueError if no encoder writes it.")
      .def_static("of_deltas", &of_deltas, "kind"_a, "prelude"_a, "rows"_a, "columns"_a,
                  "version"_a,
                  nb::sig("def of_deltas(kind: int, prelude: " BUFFER
                          ", rows: int, columns: int, version: int) -> PreludeModel"),
                  "The model of a prelude of this version of fm_delta, for a frame of rows x\n"
                  "columns words. ValueError if no encoder writes it.")
      .def_ro("table_log", &PreludeModel::table_log)
      .def_prop_ro("entries", &bytes_of<&PreludeModel::entries>,
                   "Decoding tables of 2^table_log entries of 32 bits, one after the other.")
      .def_ro("zero_bits", &PreludeModel::zero_bits,
              "Trailing zero bits that all words share, and that are not coded.")
      .def_ro("n_low", &PreludeModel::n_low,
              "neuzip_lossless: mantissa bits that are not coded with the exponent.")
      .def_prop_ro("classes", &bytes_of<&PreludeModel::classes>,
                   "64 contexts of 32 bits; those after the last class repeat it. Empty for\n"
                   "neuzip_lossless.")
      .def_ro("last_class", &PreludeModel::last_class)
      .def_ro("offset", &PreludeModel::offset)
      .def_ro("row_scales", &PreludeModel::row_scales,
              "The context of row scales; None if rows have none.")
      .def_prop_ro("column_scales", &bytes_of<&PreludeModel::column_scales>,
                   "16 bits for each column; empty if columns have no scales.")
      .def_ro("decay_bits", &PreludeModel::decay_bits,
              "The mantissa bits that choose the step of a word in a weight-decay row.")
      .def_ro("flags", &PreludeModel::flags, "The context of row flags.")
      .def_prop_ro("decay_steps", &bytes_of<&PreludeModel::decay_steps>, "2^decay_bits words.")
      .def_ro("floor", &PreludeModel::floor, "The exponent field of the product's unit.")
      .def_ro("is_product_rounded", &PreludeModel::is_product_rounded)
      .def_ro("left", &PreludeModel::left,
              "(context, trailing zero bits) of the left factor of each component.")
      .def_prop_ro("right", &bytes_of<&PreludeModel::right>,
                   "The right factor: 16 bits for each column of the first component, then of the\n"
                   "second, and so on.");
}

}  // namespace deltahub
