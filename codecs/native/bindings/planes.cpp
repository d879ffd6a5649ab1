#include "bindings/parts.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "base/default_floats.hpp"
#include "base/parallel.hpp"
#include "bindings/buffers.hpp"
#include "kernels/dispatch.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace deltahub {
namespace {

constexpr std::size_t word_bytes[n_plane_kinds] = {4, 2, 2};
constexpr int mantissa_bits[n_plane_kinds] = {23, 10, 7};
// Words that one thread takes at a time, in steps of plane_step.
constexpr std::size_t part_words = 1 << 16;

int plane_kind(int kind) {
  require(kind >= first_plane_kind && kind < first_plane_kind + n_plane_kinds,
          "words that are not F32, F16 or BF16");
  return kind - first_plane_kind;
}

std::size_t n_words_of(int plane, const Bytes& words) {
  require(words.size() % word_bytes[plane] == 0, "not whole words");
  return words.size() / word_bytes[plane];
}

// Parts that threads work on end where a block does, and where a byte of a plane does.
void require_block(std::size_t block) {
  require(block >= 8 && block <= plane_step && (block & (block - 1)) == 0,
          "a block of other than 8, 16, 32... 4096 words");
}

void require_scales(const std::optional<Bytes>& scales, std::size_t n, std::size_t block) {
  require_block(block);
  require(!scales || scales->size() == (n + block - 1) / block, "not one scale for each block");
}

// Calls work(first, count) for each part of n words, on several threads.
template <class Work>
void for_each_part(std::size_t n, std::size_t threads, Work&& work) {
  for_each_block((n + part_words - 1) / part_words, threads, [&](std::size_t part) {
    const std::size_t first = part * part_words;
    work(first, std::min(part_words, n - first));
    return true;
  });
}

void block_scales(int kind, const Bytes& words, std::size_t block, const WritableBytes& out) {
  const int plane = plane_kind(kind);
  const std::size_t n = n_words_of(plane, words);
  require_scales(Bytes(out), n, block);
  nb::gil_scoped_release unlocked;
  chosen_planes().scales[plane](words.data(), n, block, out.data());
}

void round_words(int kind, const Bytes& words, int kept, const std::optional<Bytes>& scales,
                 std::size_t block, const WritableBytes& out, std::size_t threads) {
  const int plane = plane_kind(kind);
  const std::size_t n = n_words_of(plane, words), size = word_bytes[plane];
  require(out.size() == words.size(), "sizes differ");
  require(kept >= 0 && kept <= mantissa_bits[plane], "more mantissa bits than words have");
  require_scales(scales, n, block);
  nb::gil_scoped_release unlocked;
  const auto round = chosen_planes().round[plane];
  for_each_part(n, threads, [&](std::size_t first, std::size_t count) {
    const DefaultFloats modes;
    round(words.data() + first * size, count, kept, scales ? scales->data() + first / block : nullptr,
          block, out.data() + first * size);
  });
}

void pack_plane(int kind, const Bytes& words, int low, int width, const WritableBytes& out) {
  const int plane = plane_kind(kind);
  const std::size_t n = n_words_of(plane, words);
  require(low >= 0 && width >= 1 && low + width <= mantissa_bits[plane], "no such mantissa bits");
  require(out.size() == (n * unsigned(width) + 7) / 8, "another size than the plane has");
  nb::gil_scoped_release unlocked;
  chosen_planes().pack[plane](words.data(), n, low, width, out.data());
}

// (lowest bit, width, bits) of each plane
using Planes = std::vector<std::tuple<int, int, Bytes>>;

void join_planes(int kind, const WritableBytes& words, const Planes& planes, std::uint32_t fill,
                 const std::optional<Bytes>& scales, std::size_t block, std::size_t threads) {
  const int plane = plane_kind(kind);
  const std::size_t n = n_words_of(plane, Bytes(words)), size = word_bytes[plane];
  for (const auto& [low, width, bits] : planes) {
    require(low >= 0 && width >= 1 && low + width <= mantissa_bits[plane], "no such mantissa bits");
    require(bits.size() == (n * unsigned(width) + 7) / 8, "another size than the plane has");
  }
  require(fill >> mantissa_bits[plane] == 0, "no such mantissa bits");
  require_scales(scales, n, block);
  nb::gil_scoped_release unlocked;
  const PlaneKernels& kernels = chosen_planes();
  for_each_part(n, threads, [&](std::size_t begin, std::size_t in_part) {
    for (std::size_t first = begin; first < begin + in_part; first += plane_step) {
      const std::size_t count = std::min(plane_step, begin + in_part - first);
      std::uint8_t* const at = words.data() + first * size;
      for (const auto& [low, width, bits] : planes)
        kernels.join[plane](bits.data() + first * unsigned(width) / 8, count, low, width, at);
      if (fill != 0) kernels.center[plane](at, count, fill);
      if (scales) kernels.scale[plane](at, count, scales->data() + first / block, block);
    }
  });
}

}  // namespace

void bind_planes(nb::module_& m) {
  m.def("block_scales", &block_scales, "kind"_a, "words"_a, "block"_a, "out"_a,
        nb::sig("def block_scales(kind: int, words: " BUFFER
                ", block: int, out: bytearray | memoryview) -> None"),
        "Fills `out` with the scale of each block of words: the eight highest fraction bits of its\n"
        "largest magnitude. kind: of F32, F16 or BF16; see words.WORD_KINDS. block: a power of two,\n"
        "8 to 4096. ValueError unless sizes fit, here and below.");
  m.def("round_words", &round_words, "kind"_a, "words"_a, "kept"_a, "scales"_a.none(), "block"_a,
        "out"_a, "threads"_a,
        nb::sig("def round_words(kind: int, words: " BUFFER ", kept: int, scales: " BUFFER
                " | None, block: int, out: bytearray | memoryview, threads: int) -> None"),
        "Fills `out` with finite words, divided by 1 + scale / 256 of their block if scales are\n"
        "given, and rounded once to `kept` mantissa bits, ties to even, at most to the largest\n"
        "finite word.");
  m.def("pack_plane", &pack_plane, "kind"_a, "words"_a, "low"_a, "width"_a, "out"_a,
        nb::sig("def pack_plane(kind: int, words: " BUFFER
                ", low: int, width: int, out: bytearray | memoryview) -> None"),
        "Fills `out` with `width` mantissa bits of each word, from bit `low` on: the first word's\n"
        "lowest in the first byte.");
  m.def("join_planes", &join_planes, "kind"_a, "words"_a, "planes"_a, "fill"_a, "scales"_a.none(),
        "block"_a, "threads"_a,
        nb::sig("def join_planes(kind: int, words: bytearray | memoryview, planes: "
                "collections.abc.Sequence[tuple[int, int, " BUFFER "]], fill: int, scales: " BUFFER
                " | None, block: int, threads: int) -> None"),
        "Puts planes (lowest bit, width, bits) into words where these have zeros, sets the bits\n"
        "`fill` of words whose exponent field is not 0, and multiplies words by\n"
        "1 + scale / 256 of their block if scales are given, rounded once, ties to even.");
}

}  // namespace deltahub
