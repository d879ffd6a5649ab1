// One set of kernels for merging. It is compiled once for each instruction set, as
// kernels/kernels.cpp.
#include "kernels/masks/kernels.hpp"

#include <cmath>

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
  constexpr Word infinity = Word(Word((1u << Words::exponent_bits) - 1) << Words::mantissa_bits);
  std::size_t found = 0;
  for (std::size_t j = 0; j < n; ++j)
    found += (At<Words>::word(words, j) & infinity) == infinity;
  return found;
}

template <class Words>
void elect(const std::uint8_t* base, const std::uint8_t* const* tasks, std::size_t n_tasks,
           std::size_t n, std::uint8_t* unified) {
  double from[merge_step], total[merge_step], largest[merge_step], smallest[merge_step];
  for (std::size_t j = 0; j < n; ++j) {
    from[j] = largest[j] = smallest[j] = At<Words>::value(base, j);
    total[j] = 0;
  }
  for (std::size_t t = 0; t < n_tasks; ++t)
    for (std::size_t j = 0; j < n; ++j) {
      const double value = At<Words>::value(tasks[t], j);
      total[j] += value - from[j];
      largest[j] = value > largest[j] ? value : largest[j];
      smallest[j] = value < smallest[j] ? value : smallest[j];
    }
  for (std::size_t j = 0; j < n; ++j)
    At<Words>::put(unified, j, narrowed<Words>(total[j] > 0 ? largest[j] : smallest[j]));
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
  double tau_l1[n_lanes] = {}, uni_l1[n_lanes] = {}, product[n_lanes] = {}, uni_l2[n_lanes] = {},
         tau_l2[n_lanes] = {};
  std::uint64_t n_masked[n_lanes] = {}, n_changed[n_lanes] = {};
  const auto add = [&](std::size_t lane, std::size_t j) {
    const double from = At<Words>::value(base, j), to = At<Words>::value(unified, j);
    const double value = At<Words>::value(task, j), tau = value - from;
    const bool is_in = is_masked(from, to, value);
    const double uni = is_in ? to - from : 0.0;
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

template <class Words>
void merge(const std::uint8_t* base, const std::uint8_t* unified, const std::uint8_t* task,
           double scale, std::size_t n, std::uint8_t* out) {
  for (std::size_t j = 0; j < n; ++j) {
    const auto from = At<Words>::word(base, j), to = At<Words>::word(unified, j);
    const bool is_in =
        is_masked(widened<Words>(from), widened<Words>(to), At<Words>::value(task, j));
    const auto moved = scaled<Words>(from, to, scale);
    At<Words>::put(out, j, is_in ? moved : from);
  }
}

template <class Words>
std::size_t pack_bits(const std::uint8_t* base, const std::uint8_t* unified,
                      const std::uint8_t* words, double scale, std::size_t n, std::uint8_t* bits) {
  std::size_t n_active = 0;
  bool are_sound = true;
  for (std::size_t j = 0; j < n; ++j) {
    const auto from = At<Words>::word(base, j), to = At<Words>::word(unified, j);
    const auto word = At<Words>::word(words, j);
    const bool is_active = from != to, is_in = word != from;
    are_sound &= !is_in | (is_active & (word == scaled<Words>(from, to, scale)));
    const std::size_t byte = n_active >> 3, bit = n_active & 7;
    if (is_active) bits[byte] = std::uint8_t((bit ? bits[byte] : 0) | unsigned(is_in) << bit);
    n_active += is_active;
  }
  return are_sound ? n_active : std::size_t(-1);
}

template <class Words>
bool decode(const std::uint8_t* base, const std::uint8_t* unified, const std::uint8_t* bits,
            std::size_t n_bytes, double scale, std::size_t n, std::uint8_t* out) {
  constexpr std::size_t step = 512;
  std::uint8_t is_in[step];
  std::size_t n_active = 0;
  const std::size_t n_bits = 8 * n_bytes;
  for (std::size_t begin = 0; begin < n; begin += step) {
    const std::size_t count = n - begin < step ? n - begin : step;
    for (std::size_t j = 0; j < count; ++j) {
      const bool is_active =
          At<Words>::word(base, begin + j) != At<Words>::word(unified, begin + j);
      if (bits) {
        if (n_active + is_active > n_bits) return false;
        // Of an element that is not active, any bit: it is not used.
        const std::size_t at = n_active < n_bits ? n_active : 0;
        is_in[j] = std::uint8_t(is_active & (n_bits ? bits[at >> 3] >> (at & 7) : 0));
      } else {
        is_in[j] = is_active;
      }
      n_active += is_active;
    }
    for (std::size_t j = 0; j < count; ++j) {
      const auto from = At<Words>::word(base, begin + j);
      const auto moved = scaled<Words>(from, At<Words>::word(unified, begin + j), scale);
      At<Words>::put(out, begin + j, is_in[j] ? moved : from);
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
  {kernel<F64Words>, kernel<F32Words>, kernel<F16Words>, kernel<Bf16Words>}

const MaskKernels DELTAHUB_MASKS(DELTAHUB_ISA) = {
    .count_infinite = DELTAHUB_OF_FLOATS(count_infinite),
    .elect = DELTAHUB_OF_FLOATS(elect),
    .add_sums = DELTAHUB_OF_FLOATS(add_sums),
    .merge = DELTAHUB_OF_FLOATS(merge),
    .pack_bits = DELTAHUB_OF_FLOATS(pack_bits),
    .decode = DELTAHUB_OF_FLOATS(decode),
};

}  // namespace deltahub
