#include "bindings/parts.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstring>
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

constexpr std::size_t word_bytes[n_float_kinds] = {8, 4, 2, 2, 1, 1};
// Words that one thread takes at a time. Sums are added in the order of these parts.
constexpr std::size_t part_words = 1 << 16;

std::size_t n_words_of(int kind, const Bytes& words) {
  require(kind >= 0 && kind < int(std::size(word_bytes)), "words that cannot be merged");
  require(words.size() % word_bytes[kind] == 0, "not whole words");
  return words.size() / word_bytes[kind];
}

template <class... Others>
void require_same_size(const Bytes& words, const Others&... others) {
  require(((others.size() == words.size()) && ...), "sizes differ");
}

std::size_t count_infinite(int kind, const Bytes& words) {
  const std::size_t n = n_words_of(kind, words);
  nb::gil_scoped_release unlocked;
  return chosen_masks().count_infinite[kind](words.data(), n);
}

using Doubles = nb::ndarray<const double, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WritableDoubles = nb::ndarray<double, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void widen_words(int kind, const Bytes& words, const WritableDoubles& out) {
  const std::size_t n = n_words_of(kind, words);
  require(out.size() == n, "sizes differ");
  nb::gil_scoped_release unlocked;
  const DefaultFloats modes;
  chosen_masks().widen[kind](words.data(), n, out.data());
}

std::size_t narrow_doubles(int kind, const Doubles& values, const WritableBytes& out) {
  const std::size_t n = n_words_of(kind, Bytes(out));
  require(values.size() == n, "sizes differ");
  nb::gil_scoped_release unlocked;
  const DefaultFloats modes;
  chosen_masks().narrow[kind](values.data(), n, out.data());
  return chosen_masks().count_infinite[kind](out.data(), n);
}

// |tau|, |uni|, tau * uni, uni^2, tau^2, masked, changed
using Sums = std::tuple<double, double, double, double, double, std::uint64_t, std::uint64_t>;

std::vector<Sums> elect_unified(int kind, const Bytes& base, const std::vector<Bytes>& tasks,
                                const WritableBytes& out, std::size_t threads) {
  const std::size_t n = n_words_of(kind, base), size = word_bytes[kind];
  require_same_size(base, out);
  for (const Bytes& task : tasks) require_same_size(base, task);
  std::vector<MergeSums> sums(tasks.size());
  {
    nb::gil_scoped_release unlocked;
    const MaskKernels& kernels = chosen_masks();
    const std::size_t n_parts = (n + part_words - 1) / part_words;
    std::vector<MergeSums> of_parts(n_parts * tasks.size());
    for_each_block(n_parts, threads, [&](std::size_t part) {
      const DefaultFloats modes;
      std::vector<const std::uint8_t*> at(tasks.size());
      const std::size_t end = std::min(n, (part + 1) * part_words);
      for (std::size_t j = part * part_words; j < end; j += merge_step) {
        const std::size_t count = std::min(merge_step, end - j);
        for (std::size_t t = 0; t < tasks.size(); ++t) at[t] = tasks[t].data() + j * size;
        std::uint8_t* const unified = out.data() + j * size;
        kernels.elect[kind](base.data() + j * size, at.data(), at.size(), count, unified);
        for (std::size_t t = 0; t < tasks.size(); ++t)
          kernels.add_sums[kind](base.data() + j * size, unified, at[t], count,
                                 of_parts[part * tasks.size() + t]);
      }
      return true;
    });
    const DefaultFloats modes;
    for (std::size_t part = 0; part < n_parts; ++part)
      for (std::size_t t = 0; t < tasks.size(); ++t) {
        const MergeSums& added = of_parts[part * tasks.size() + t];
        MergeSums& sum = sums[t];
        sum.tau_l1 += added.tau_l1;
        sum.uni_l1 += added.uni_l1;
        sum.product += added.product;
        sum.uni_l2 += added.uni_l2;
        sum.tau_l2 += added.tau_l2;
        sum.n_masked += added.n_masked;
        sum.n_changed += added.n_changed;
      }
  }
  std::vector<Sums> found;
  for (const MergeSums& s : sums)
    found.emplace_back(s.tau_l1, s.uni_l1, s.product, s.uni_l2, s.tau_l2, s.n_masked, s.n_changed);
  return found;
}

std::size_t merge_task(int kind, const Bytes& base, const Bytes& unified, const Bytes& task,
                       double scale, const WritableBytes& out, std::size_t threads) {
  const std::size_t n = n_words_of(kind, base), size = word_bytes[kind];
  require_same_size(base, unified, task, out);
  nb::gil_scoped_release unlocked;
  const MaskKernels& kernels = chosen_masks();
  std::vector<std::size_t> infinite((n + part_words - 1) / part_words);
  for_each_block(infinite.size(), threads, [&](std::size_t part) {
    const DefaultFloats modes;
    const std::size_t j = part * part_words, count = std::min(part_words, n - j);
    const std::size_t at = j * size;
    kernels.merge[kind](base.data() + at, unified.data() + at, task.data() + at, scale, count,
                        out.data() + at);
    infinite[part] = kernels.count_infinite[kind](out.data() + at, count);
    return true;
  });
  std::size_t total = 0;
  for (const std::size_t each : infinite) total += each;
  return total;
}

std::tuple<nb::bytes, std::size_t> pack_mask(int kind, const Bytes& base, const Bytes& unified,
                                             const Bytes& words, double scale) {
  const std::size_t n = n_words_of(kind, base);
  require_same_size(base, unified, words);
  std::vector<std::uint8_t> bits((n + 7) / 8);
  std::size_t n_active = 0;
  {
    nb::gil_scoped_release unlocked;
    const DefaultFloats modes;
    n_active = chosen_masks().pack_bits[kind](base.data(), unified.data(), words.data(), scale, n,
                                              bits.data());
    require(n_active != std::size_t(-1), "words that no mask of this scale makes");
  }
  return {nb::bytes(bits.data(), (n_active + 7) / 8), n_active};
}

void decode_mask(int kind, const Bytes& base, const Bytes& unified,
                 const std::optional<Bytes>& bits, double scale, const WritableBytes& out) {
  const std::size_t n = n_words_of(kind, base);
  require_same_size(base, unified, out);
  nb::gil_scoped_release unlocked;
  const DefaultFloats modes;
  // An empty buffer may have no address.
  static constexpr std::uint8_t none = 0;
  const std::uint8_t* const at = !bits ? nullptr : bits->size() ? bits->data() : &none;
  require(chosen_masks().decode[kind](base.data(), unified.data(), at, bits ? bits->size() : 0,
                                      scale, n, out.data()),
          "not one bit for each element that the unified model changes");
}

}  // namespace

void bind_masks(nb::module_& m) {
  m.def("count_infinite", &count_infinite, "kind"_a, "words"_a,
        nb::sig("def count_infinite(kind: int, words: " BUFFER ") -> int"),
        "How many words are infinite or NaN. kind: see words.WORD_KINDS; 0 to 5, here and below.");
  m.def("widen_words", &widen_words, "kind"_a, "words"_a, "out"_a.noconvert(),
        nb::sig("def widen_words(kind: int, words: " BUFFER
                ", out: numpy.typing.NDArray[numpy.float64]) -> None"),
        "Fills `out` with the words as doubles, which is exact.");
  m.def("narrow_doubles", &narrow_doubles, "kind"_a, "values"_a.noconvert(), "out"_a,
        nb::sig("def narrow_doubles(kind: int, values: numpy.typing.NDArray[numpy.float64], "
                "out: bytearray | memoryview) -> int"),
        "Fills `out` with the words nearest to these doubles, ties to even. Returns how many are\n"
        "infinite or NaN.");
  m.def("elect_unified", &elect_unified, "kind"_a, "base"_a, "tasks"_a, "out"_a, "threads"_a,
        nb::sig("def elect_unified(kind: int, base: " BUFFER ", tasks: list[" BUFFER
                "], out: bytearray | memoryview, threads: int) "
                "-> list[tuple[float, float, float, float, float, int, int]]"),
        "Fills `out` with the unified words of EMR-Merging, and returns for each task the sums\n"
        "of |tau|, |uni|, tau * uni, uni^2 and tau^2, and the numbers of masked and of changed\n"
        "elements. tau: task - base; uni: unified - base where the task is masked, else 0. Words\n"
        "must be finite. The same for any number of threads.");
  m.def("merge_task", &merge_task, "kind"_a, "base"_a, "unified"_a, "task"_a, "scale"_a, "out"_a,
        "threads"_a,
        nb::sig("def merge_task(kind: int, base: " BUFFER ", unified: " BUFFER ", task: " BUFFER
                ", scale: float, out: bytearray | memoryview, threads: int) -> int"),
        "Fills `out` with a task's words after the merge: where its mask is 1 the base plus\n"
        "scale times the unified difference, else the base. Returns how many became infinite.");
  m.def("pack_mask", &pack_mask, "kind"_a, "base"_a, "unified"_a, "words"_a, "scale"_a,
        nb::sig("def pack_mask(kind: int, base: " BUFFER ", unified: " BUFFER ", words: " BUFFER
                ", scale: float) -> tuple[bytes, int]"),
        "(bits, their number): for each element whose unified word is not the base's, whether\n"
        "the word of merge_task is not the base's; the lowest bit of each byte first. ValueError\n"
        "for words that merge_task cannot have made.");
  m.def("decode_mask", &decode_mask, "kind"_a, "base"_a, "unified"_a, "bits"_a.none(), "scale"_a,
        "out"_a,
        nb::sig("def decode_mask(kind: int, base: " BUFFER ", unified: " BUFFER ", bits: " BUFFER
                " | None, scale: float, out: bytearray | memoryview) -> None"),
        "Fills `out` with the words of pack_mask. bits: None if all are one. ValueError unless\n"
        "there are as many as pack_mask makes, with zeros after the last.");
}

}  // namespace deltahub
