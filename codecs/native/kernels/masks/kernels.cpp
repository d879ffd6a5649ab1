// One set of kernels for merging. It is compiled once for each instruction set, as
// kernels/kernels.cpp.
#include "kernels/masks/kernels.hpp"

#include <cmath>
#include <cstring>

#include "base/words.hpp"
#include "kernels/masks/doubles.hpp"

DELTAHUB_BEGIN
namespace {

template <class Words>
struct At {
  using Word = typename Words::Word;
  static Word word(const std::uint8_t* words, std::size_t j) {
    return load<Word>(words + j * sizeof(Word));
  }
  static double value(const std::uint8_t* words, std::size_t j) {
    return widened<Words>(word(words, j));
  }
  static void put(std::uint8_t* words, std::size_t j, Word word) {
    store(words + j * sizeof(Word), word);
  }
};

template <class Words>
std::size_t count_infinite(const std::uint8_t* words, std::size_t n) {
  using Word = typename Words::Word;
  constexpr Word magnitude = Word(Words::top - 1);
  std::size_t found = 0;
  for (std::size_t j = 0; j < n; ++j)
    found += Word(At<Words>::word(words, j) & magnitude) >= Word(first_infinite<Words>);
  return found;
}

template <class Words>
void widen(const std::uint8_t* words, std::size_t n, double* values) {
  for (std::size_t j = 0; j < n; ++j) values[j] = At<Words>::value(words, j);
}

template <class Words>
void narrow(const double* values, std::size_t n, std::uint8_t* words) {
  for (std::size_t j = 0; j < n; ++j) At<Words>::put(words, j, narrowed<Words>(values[j]));
}

template <class Words>
void elect(const std::uint8_t* base, const std::uint8_t* const* tasks, std::size_t n_tasks,
           std::size_t n, std::uint8_t* unified) {
  double from[merge_step], value[merge_step], total[merge_step], largest[merge_step],
      smallest[merge_step];
  widen<Words>(base, n, from);
  for (std::size_t j = 0; j < n; ++j) {
    largest[j] = smallest[j] = from[j];
    total[j] = 0;
  }
  for (std::size_t t = 0; t < n_tasks; ++t) {
    widen<Words>(tasks[t], n, value);
    for (std::size_t j = 0; j < n; ++j) {
      total[j] += value[j] - from[j];
      largest[j] = value[j] > largest[j] ? value[j] : largest[j];
      smallest[j] = value[j] < smallest[j] ? value[j] : smallest[j];
    }
  }
  for (std::size_t j = 0; j < n; ++j) total[j] = total[j] > 0 ? largest[j] : smallest[j];
  narrow<Words>(total, n, unified);
}

// Whether a task's element is masked: signs are compared, because a product of two small
// differences may become zero.
inline bool is_masked(double from, double unified, double task) {
  return (bool(unified > from) & bool(task > from)) | (bool(unified < from) & bool(task < from));
}

// Lanes keep sums the same for every width of vectors.
inline constexpr std::size_t n_lanes = 8;

inline double total_of(const double (&lanes)[n_lanes]) {
  double total = 0;
  for (const double lane : lanes) total += lane;
  return total;
}

template <class Words>
void add_sums(const std::uint8_t* base, const std::uint8_t* unified, const std::uint8_t* task,
              std::size_t n, MergeSums& sums) {
  double from[merge_step], to[merge_step], value[merge_step];
  widen<Words>(base, n, from);
  widen<Words>(unified, n, to);
  widen<Words>(task, n, value);
  double tau_l1[n_lanes] = {}, uni_l1[n_lanes] = {}, product[n_lanes] = {}, uni_l2[n_lanes] = {},
         tau_l2[n_lanes] = {};
  std::uint64_t n_masked[n_lanes] = {}, n_changed[n_lanes] = {};
  const auto add = [&](std::size_t lane, std::size_t j) {
    const double tau = value[j] - from[j];
    const bool is_in = is_masked(from[j], to[j], value[j]);
    const double uni = is_in ? to[j] - from[j] : 0.0;
    tau_l1[lane] += std::fabs(tau);
    uni_l1[lane] += std::fabs(uni);
    product[lane] += tau * uni;
    uni_l2[lane] += uni * uni;
    tau_l2[lane] += tau * tau;
    n_masked[lane] += is_in;
    n_changed[lane] += tau != 0;
  };
  std::size_t j = 0;
  for (; j + n_lanes <= n; j += n_lanes)
    for (std::size_t lane = 0; lane < n_lanes; ++lane) add(lane, j + lane);
  for (std::size_t lane = 0; j < n; ++lane, ++j) add(lane, j);
  sums.tau_l1 += total_of(tau_l1);
  sums.uni_l1 += total_of(uni_l1);
  sums.product += total_of(product);
  sums.uni_l2 += total_of(uni_l2);
  sums.tau_l2 += total_of(tau_l2);
  for (std::size_t lane = 0; lane < n_lanes; ++lane) {
    sums.n_masked += n_masked[lane];
    sums.n_changed += n_changed[lane];
  }
}

// Elements that are converted together: whole loops of one width are vectorized, mixed ones are not.
inline constexpr std::size_t step = 512;

// The scaled words of n elements, at most `step`.
template <class Words>
void scale_words(const std::uint8_t* base, const std::uint8_t* unified, double scale,
                 std::size_t n, typename Words::Word* out) {
  if (scale == 1) {
    std::memcpy(out, unified, n * sizeof(typename Words::Word));
    return;
  }
  double from[step], to[step];
  widen<Words>(base, n, from);
  widen<Words>(unified, n, to);
  for (std::size_t j = 0; j < n; ++j) {
    const double difference = to[j] - from[j];
    const double moved = scale * difference;
    to[j] = from[j] + moved;
  }
  narrow<Words>(to, n, reinterpret_cast<std::uint8_t*>(out));
}

template <class Words>
void merge(const std::uint8_t* base, const std::uint8_t* unified, const std::uint8_t* task,
           double scale, std::size_t n, std::uint8_t* out) {
  using Word = typename Words::Word;
  Word moved[step];
  double from[step], to[step], value[step];
  for (std::size_t begin = 0; begin < n; begin += step) {
    const std::size_t count = n - begin < step ? n - begin : step;
    const std::size_t at = begin * sizeof(Word);
    scale_words<Words>(base + at, unified + at, scale, count, moved);
    widen<Words>(base + at, count, from);
    widen<Words>(unified + at, count, to);
    widen<Words>(task + at, count, value);
    for (std::size_t j = 0; j < count; ++j) {
      const Word near = At<Words>::word(base + at, j);
      At<Words>::put(out + at, j, is_masked(from[j], to[j], value[j]) ? moved[j] : near);
    }
  }
}

template <class Words>
std::size_t pack_bits(const std::uint8_t* base, const std::uint8_t* unified,
                      const std::uint8_t* words, double scale, std::size_t n, std::uint8_t* bits) {
  using Word = typename Words::Word;
  Word moved[step];
  std::size_t n_active = 0;
  bool are_sound = true;
  for (std::size_t begin = 0; begin < n; begin += step) {
    const std::size_t count = n - begin < step ? n - begin : step;
    const std::size_t at = begin * sizeof(Word);
    scale_words<Words>(base + at, unified + at, scale, count, moved);
    for (std::size_t j = 0; j < count; ++j) {
      const Word from = At<Words>::word(base + at, j), to = At<Words>::word(unified + at, j);
      const Word word = At<Words>::word(words + at, j);
      const bool is_active = from != to, is_in = word != from;
      are_sound &= !is_in | (is_active & (word == moved[j]));
      const std::size_t byte = n_active >> 3, bit = n_active & 7;
      if (is_active) bits[byte] = std::uint8_t((bit ? bits[byte] : 0) | unsigned(is_in) << bit);
      n_active += is_active;
    }
  }
  return are_sound ? n_active : std::size_t(-1);
}

template <class Words>
bool decode(const std::uint8_t* base, const std::uint8_t* unified, const std::uint8_t* bits,
            std::size_t n_bytes, double scale, std::size_t n, std::uint8_t* out) {
  using Word = typename Words::Word;
  Word moved[step];
  std::size_t n_active = 0;
  const std::size_t n_bits = 8 * n_bytes;
  for (std::size_t begin = 0; begin < n; begin += step) {
    const std::size_t count = n - begin < step ? n - begin : step;
    const std::size_t at = begin * sizeof(Word);
    scale_words<Words>(base + at, unified + at, scale, count, moved);
    for (std::size_t j = 0; j < count; ++j) {
      const Word from = At<Words>::word(base + at, j), to = At<Words>::word(unified + at, j);
      const bool is_active = from != to;
      bool is_in = is_active;
      if (bits) {
        if (n_active + is_active > n_bits) return false;
        // Of an element that is not active, any bit: it is not used.
        const std::size_t place = n_active < n_bits ? n_active : 0;
        is_in = is_active & bool(n_bits ? bits[place >> 3] >> (place & 7) & 1 : 0);
      }
      At<Words>::put(out + at, j, is_in ? moved[j] : from);
      n_active += is_active;
    }
  }
  if (!bits) return n_bytes == 0;
  const bool are_padded = n_active % 8 == 0 || bits[n_active / 8] >> n_active % 8 == 0;
  return n_bytes == (n_active + 7) / 8 && are_padded;
}

}  // namespace
DELTAHUB_END

namespace deltahub {

#define DELTAHUB_MASKS_OF(isa) isa##_masks
#define DELTAHUB_MASKS(isa) DELTAHUB_MASKS_OF(isa)
#define DELTAHUB_OF_FLOATS(kernel) \
  {kernel<F64Words>,  kernel<F32Words>,    kernel<F16Words>, \
   kernel<Bf16Words>, kernel<F8E4M3Words>, kernel<F8E5M2Words>}

const MaskKernels DELTAHUB_MASKS(DELTAHUB_ISA) = {
    .widen = DELTAHUB_OF_FLOATS(widen),
    .narrow = DELTAHUB_OF_FLOATS(narrow),
    .count_infinite = DELTAHUB_OF_FLOATS(count_infinite),
    .elect = DELTAHUB_OF_FLOATS(elect),
    .add_sums = DELTAHUB_OF_FLOATS(add_sums),
    .merge = DELTAHUB_OF_FLOATS(merge),
    .pack_bits = DELTAHUB_OF_FLOATS(pack_bits),
    .decode = DELTAHUB_OF_FLOATS(decode),
};

}  // namespace deltahub
