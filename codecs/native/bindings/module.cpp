// The Python module. Bindings check sizes, own buffers, release the GIL and raise exceptions.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "base/byte_groups.hpp"
#include "bindings/buffers.hpp"
#include "bindings/parts.hpp"
#include "kernels/dispatch.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace deltahub {
namespace {

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

nb::bytes uninitialized_bytes(std::size_t size) {
  PyObject* const bytes = PyBytes_FromStringAndSize(nullptr, Py_ssize_t(size));
  if (!bytes) nb::raise_python_error();
  return nb::steal<nb::bytes>(bytes);
}

void join_groups(const Bytes& grouped, const WritableBytes& out) {
  if (out.size() != grouped.size()) throw std::invalid_argument("both must have the same size");
  nb::gil_scoped_release unlocked;
  join_byte_groups(grouped.data(), grouped.size(), out.data());
}

}  // namespace
}  // namespace deltahub

NB_MODULE(_native, m) {
  using namespace deltahub;
  m.doc() = "Native kernels of deltahub.codecs.";
  // If a process ends while a thread reads a frame, block tables are alive. That is no leak.
  nb::set_leak_warnings(false);

  m.def("kernel_names", &kernel_names,
        "The sets of kernels that this processor can run, from the slowest to the fastest.");
  m.def(
      "use_kernels", &use_kernels, "name"_a,
      "Encoders and decoders made from now on use these kernels. All sets write and read the same\n"
      "bytes. ValueError if the processor cannot run them.");

  m.def("join_byte_groups", &join_groups, "grouped"_a, "out"_a,
        nb::sig("def join_byte_groups(grouped: " BUFFER ", out: bytearray | memoryview) -> None"),
        "Fills `out` with the bytes of `grouped`, in which bytes 0, 4, 8... of `out` come first, "
        "then\n"
        "1, 5, 9..., and so on. The two must not overlap. ValueError unless they have the same "
        "size.");

  m.def(
      "uninitialized_bytes", &uninitialized_bytes, "size"_a,
      "`size` bytes of arbitrary values, as the buffer of an io.BytesIO that overwrites all bytes\n"
      "before they are read. Zeroing them would cost as much as copying them.");

  bind_codecs(m);
  bind_frames(m);
  bind_search(m);
  bind_masks(m);
  bind_planes(m);
  bind_preludes(m);
}
