// One set of kernels; built once for each instruction set, with -DDELTAHUB_ISA=its name.
#include "kernels/kernels.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/words.hpp"
#include "kernels/ans/bit_stream.hpp"
#include "kernels/ans/decode.hpp"
#include "kernels/ans/encode.hpp"
#include "kernels/ans/table_entries.hpp"
#include "kernels/magnitude_bins.hpp"
#include "kernels/prediction/prediction.hpp"
#include "kernels/table_cost.hpp"
#include "kernels/xxh3.hpp"
#if defined(__AVX512F__)
#include "kernels/prediction/contexts_avx512.hpp"
#elif defined(__AVX2__)
#include "kernels/prediction/contexts_avx2.hpp"
#else
#include "kernels/prediction/contexts_vectors.hpp"
#endif
#if defined(__AVX512F__)
#include "kernels/prediction/integer_product.hpp"
#include "kernels/prediction/prediction_avx512.hpp"
#elif defined(__AVX2__)
#include "kernels/prediction/integer_product.hpp"
#include "kernels/prediction/prediction_avx2.hpp"
#else
#include "kernels/prediction/integer_dot_product.hpp"
#include "kernels/prediction/prediction_vectors.hpp"
#endif

DELTAHUB_BEGIN
namespace {

void begin(StreamState& stream, const std::uint8_t* bytes, std::size_t size, int table_log) {
  BackwardBits bits(bytes, size);
  stream = {.bytes = bytes, .size = size};
  for (std::size_t lane = 0; lane < n_lanes && bits.is_sound(); ++lane) {
    bits.skip(unsigned(table_log));
    stream.states[lane] = std::uint32_t(bits.peek() & low_masks[unsigned(table_log)]);
  }
  stream.position = bits.position();
  stream.is_sound = bits.is_sound();
}

template <class Number>
void places(const std::uint8_t* numbers, const std::uint16_t* contexts, std::size_t n,
            std::uint16_t* out) {
  using Wide = std::conditional_t<sizeof(Number) == 8, std::uint64_t, std::uint32_t>;
  std::size_t j = 0;
#ifdef DELTAHUB_HAS_SHORT_PLACES
  if constexpr (sizeof(Number) == 2) j = fast_short_places(numbers, contexts, n, out);
#endif
  for (; j < n; ++j) {
    const Context context = contexts[j];
    const Wide number = sign_extended<Number>(load<Number>(numbers + j * sizeof(Number)));
    const Wide negative = sign_mask(number);
    const Wide shifted = (number ^ negative) >> context_shift(context);
    const auto magnitude = std::int32_t(std::min(std::make_signed_t<Wide>(shifted),
                                                 std::make_signed_t<Wide>(cells_end)));
    // A float's exponent and first mantissa digit are the octave and its half.
    const auto halves = std::int32_t(std::bit_cast<std::uint32_t>(float(magnitude)) >> 22);
    const std::int32_t is_high = -std::int32_t(magnitude >= n_linear);  // no branch: vectors
    const std::int32_t cell = (magnitude & ~is_high) | ((halves - 2 * 131 + n_linear) & is_high);
    const auto sign = std::int32_t(negative & 1);
    out[j] = std::uint16_t(std::int32_t(context_table(context)) * std::int32_t(n_places) +
                           2 * cell + sign);
  }
}

template <class Words>
void contexts(const std::uint8_t* words, std::size_t n, int scale, const std::int16_t* columns,
              const ClassTable& classes, int last, std::uint16_t* out) {
  using Word = typename Words::Word;
  std::size_t j = 0;
#ifdef DELTAHUB_HAS_CONTEXTS
  if constexpr (Words::exponent_bits > 0 && (Words::word_bits == 16 || Words::word_bits == 32))
    j = fast_contexts<Words>(words, n, scale, columns, classes, last, out);
#endif
  for (; j < n; ++j) {
    int z = scale + (columns ? columns[j] : 0);
    if constexpr (Words::exponent_bits > 0)
      z -= 4 * std::max(int(Words::exponent(load<Word>(words + j * sizeof(Word)))), 1);
    out[j] = classes.contexts[std::clamp(z, 0, last)];
  }
}

template <class Words>
void deltas(const std::uint8_t* words, const std::uint8_t* base, std::size_t n,
            std::uint8_t* out) {
  using Word = typename Words::Word;
  for (std::size_t j = 0; j < n; ++j)
    store<Word>(out + j * sizeof(Word), Words::step(load<Word>(words + j * sizeof(Word)),
                                                    load<Word>(base + j * sizeof(Word))));
}

template <class Words>
float sizes(const std::uint8_t* words, const std::uint8_t* base, std::size_t n, bool is_weighted,
            float* out) {
  using Word = typename Words::Word;
  using Signed = std::make_signed_t<typename Words::Wide>;
  const std::int32_t weighted = is_weighted ? -1 : 0;
  for (std::size_t j = 0; j < n; ++j) {
    const Word from = load<Word>(base + j * sizeof(Word));
    const Word step = Words::step(load<Word>(words + j * sizeof(Word)), from);
    const float size = std::fabs(float(Signed(std::make_signed_t<Word>(step))));
    std::int32_t power = 0;
    if constexpr (Words::exponent_bits > 0) {
      constexpr std::int32_t least = middle_exponent<Words> - 60, most = middle_exponent<Words> + 60;
      const auto exponent = std::int32_t(Words::exponent(from));
      const std::int32_t bounded = exponent < 1 ? 1 : exponent;
      power = (bounded < least ? least : bounded > most ? most : bounded) - middle_exponent<Words>;
    }
    out[j] = size * std::bit_cast<float>(((power & weighted) + 127) << 23);
  }
  float sums[8] = {};
  std::size_t j = 0;
  for (; j + 8 <= n; j += 8)
    for (std::size_t k = 0; k < 8; ++k) sums[k] += out[j + k];
  for (; j < n; ++j) sums[j % 8] += out[j];
  for (std::size_t k = 1; k < 8; ++k) sums[0] += sums[k];
  return sums[0];
}

template <class Words>
void bins(const std::uint8_t* words, const std::uint8_t* base, std::size_t n, std::uint16_t* out) {
  using Word = typename Words::Word;
  for (std::size_t j = 0; j < n; ++j) {
    const auto delta = Words::delta(load<Word>(words + j * sizeof(Word)),
                                    load<Word>(base + j * sizeof(Word)));
    if constexpr (sizeof(Word) == 8) {
      const std::uint64_t negative = sign_mask(delta);
      out[j] = std::uint16_t(bin_of(delta ^ negative, unsigned(negative & 1)));
    } else {
      out[j] = std::uint16_t(bin_of_delta(std::int32_t(delta)));
    }
  }
}

template <class Words>
void apply(const std::uint8_t* words, const std::uint8_t* deltas, std::size_t n,
           std::uint8_t* out) {
  using Word = typename Words::Word;
  for (std::size_t j = 0; j < n; ++j) {
    const Word word = load<Word>(words + j * sizeof(Word));
    const Word delta = load<Word>(deltas + j * sizeof(Word));
    store<Word>(out + j * sizeof(Word), Words::moved(word, delta));
  }
}

template <class Words>
void apply_strided(const std::uint8_t* words, const std::uint8_t* deltas, std::size_t n,
                   unsigned stride, std::uint8_t* out) {
  using Word = typename Words::Word;
  const Word kept = Word(~Word(0) << stride);
  for (std::size_t j = 0; j < n; ++j) {
    const Word word = load<Word>(words + j * sizeof(Word));
    const Word delta = Word(load<Word>(deltas + j * sizeof(Word)) << stride);
    store<Word>(out + j * sizeof(Word), Word(Words::moved(word, delta) & kept));
  }
}

template <class Words>
void predict_each(const std::uint8_t* words, const std::int32_t* product, std::size_t n, int floor,
                  std::uint8_t* out) {
  using Word = typename Words::Word;
  for (std::size_t j = 0; j < n; ++j) {
    const Word word = load<Word>(words + j * sizeof(Word));
    store<Word>(out + j * sizeof(Word), Word(predicted<Words>(word, product[j], floor)));
  }
}

#ifdef DELTAHUB_HAS_PREDICT
constexpr std::size_t predicted_together = 32;
constexpr int few_others = 4;  // of these

template <class Words>
inline void predict_others(const std::uint8_t* words, const std::int32_t* product, int floor,
                           std::uint8_t* out, std::uint32_t others) {
  constexpr std::size_t size = sizeof(typename Words::Word);
  for (; others != 0; others &= others - 1) {
    const auto j = std::size_t(std::countr_zero(others));
    predict_each<Words>(words + j * size, product + j, 1, floor, out + j * size);
  }
}

// In vectors, though slower ones: as a loop of its own, of a known length.
template <class Words>
[[gnu::noinline]] void predict_each_together(const std::uint8_t* words,
                                             const std::int32_t* product, int floor,
                                             std::uint8_t* out) {
  predict_each<Words>(words, product, predicted_together, floor, out);
}

template <class Words>
void predict_together(const std::uint8_t* words, const std::int32_t* product, int floor,
                      std::uint8_t* out) {
  const std::uint32_t others = predict_usual<Words>(words, product, floor, out);
  if (std::popcount(others) > few_others)
    predict_each_together<Words>(words, product, floor, out);
  else
    predict_others<Words>(words, product, floor, out, others);
}

// Of n words those that are in whole groups, as `kind` tells of them; how many.
template <class Words, class Kind>
std::size_t predict_kind(const Kind& kind, const std::uint8_t* words, const std::int32_t* product,
                         std::size_t n, int floor, std::uint8_t* out) {
  constexpr std::size_t together = predicted_together, size = sizeof(typename Words::Word);
  constexpr std::size_t most_groups = 32;
  std::size_t j = 0;
  while (j + together <= n) {
    std::uint32_t others[most_groups];
    const std::size_t n_groups = std::min(most_groups, (n - j) / together);
    // First without a call, so that what is constant stays in registers.
    for (std::size_t g = 0; g < n_groups; ++g) {
      const std::size_t at = j + g * together;
      others[g] = kind.predict(words + at * size, product + at, out + at * size);
    }
    for (std::size_t g = 0; g < n_groups; ++g, j += together) {
      if (std::popcount(others[g]) > few_others)
        predict_together<Words>(words + j * size, product + j, floor, out + j * size);
      else
        predict_others<Words>(words + j * size, product + j, floor, out + j * size, others[g]);
    }
  }
  return j;
}

template <class Words>
void predict(const std::uint8_t* words, const std::int32_t* product, std::size_t n, int floor,
             std::uint8_t* out) {
  constexpr std::size_t together = predicted_together, size = sizeof(typename Words::Word);
  std::size_t j = 0;
  if constexpr (size == 2) {
    // Where many words are not near, as happens with a fine unit, they are in all groups.
    const NearWords<Words> near(floor);
    if (near.exist() && n >= together &&
        std::popcount(near.predict(words, product, out)) <= few_others)
      j = predict_kind<Words>(near, words, product, n, floor, out);
  }
#ifdef DELTAHUB_HAS_SCALED
  if constexpr (std::is_same_v<Words, Bf16Words>)
    if (const ScaledBf16 scaled(floor); j == 0 && scaled.exist())
      j = predict_kind<Words>(scaled, words, product, n, floor, out);
#endif
  for (; j + together <= n; j += together)
    predict_together<Words>(words + j * size, product + j, floor, out + j * size);
  predict_each<Words>(words + j * size, product + j, n - j, floor, out + j * size);
}
#else
// As a call of its own one word stays out of vectors, which compute all words to keep a few.
template <class Words>
[[gnu::noinline]] void predict_one(const std::uint8_t* word, const std::int32_t* product, int floor,
                                   std::uint8_t* out) {
  predict_each<Words>(word, product, 1, floor, out);
}

template <class Words>
void predict(const std::uint8_t* words, const std::int32_t* product, std::size_t n, int floor,
             std::uint8_t* out) {
  constexpr std::size_t together = NearWords<Words>::together, size = sizeof(typename Words::Word);
  const NearWords<Words> near(floor);
  std::size_t j = 0;
  for (; near.exists() && j + together <= n; j += together) {
    const auto others = near.predict(words + j * size, product + j, out + j * size);
    if (is_any(others))
      for (std::size_t k = j; k < j + together; ++k)
        if (others[k - j]) predict_one<Words>(words + k * size, product + k, floor, out + k * size);
  }
  for (; j < n; ++j) predict_one<Words>(words + j * size, product + j, floor, out + j * size);
}
#endif

template <class Words>
void join(const std::uint8_t* numbers, std::size_t n, int zero_bits, int n_low,
          std::uint8_t* words) {
  using Word = typename Words::Word;
  for (std::size_t j = 0; j < n; ++j) {
    const Word number = Words::moved_left(load<Word>(numbers + j * sizeof(Word)), zero_bits);
    store<Word>(words + j * sizeof(Word), Words::joined(number, n_low));
  }
}

}  // namespace
DELTAHUB_END

namespace deltahub {

#define DELTAHUB_NAME_OF(isa) #isa
#define DELTAHUB_NAME(isa) DELTAHUB_NAME_OF(isa)
#define DELTAHUB_KERNELS_OF(isa) isa##_kernels
#define DELTAHUB_KERNELS(isa) DELTAHUB_KERNELS_OF(isa)
#define DELTAHUB_ALL_KINDS(kernel)                                                              \
  {kernel<F64Words>,    kernel<F32Words>,    kernel<F16Words>, kernel<Bf16Words>,               \
   kernel<F8E4M3Words>, kernel<F8E5M2Words>, kernel<IntegerWords<std::uint8_t>>,                \
   kernel<IntegerWords<std::uint16_t>>, kernel<IntegerWords<std::uint32_t>>,                    \
   kernel<IntegerWords<std::uint64_t>>}

const Kernels DELTAHUB_KERNELS(DELTAHUB_ISA) = {
    .name = DELTAHUB_NAME(DELTAHUB_ISA),
    .begin = begin,
    .numbers = {numbers<std::uint8_t>, numbers<std::uint16_t>, numbers<std::uint32_t>,
                numbers<std::uint64_t>},
    .two_numbers = {two_numbers<std::uint8_t>, two_numbers<std::uint16_t>,
                    two_numbers<std::uint32_t>, two_numbers<std::uint64_t>},
    .places = {places<std::uint8_t>, places<std::uint16_t>, places<std::uint32_t>,
               places<std::uint64_t>},
    .write = {write<std::uint8_t>, write<std::uint16_t>, write<std::uint32_t>,
              write<std::uint64_t>},
    .contexts = DELTAHUB_ALL_KINDS(contexts),
    .deltas = DELTAHUB_ALL_KINDS(deltas),
    .sizes = DELTAHUB_ALL_KINDS(sizes),
    .bins = DELTAHUB_ALL_KINDS(bins),
    .shared_cost = shared_cost,
    .apply = DELTAHUB_ALL_KINDS(apply),
    .apply_strided = DELTAHUB_ALL_KINDS(apply_strided),
    .predict = {nullptr, predict<F32Words>, predict<F16Words>, predict<Bf16Words>, nullptr, nullptr,
                nullptr, nullptr, nullptr, nullptr},
    .join = {join<F64Words>, join<F32Words>, join<F16Words>, join<Bf16Words>, join<F8E4M3Words>,
             join<F8E5M2Words>, nullptr, nullptr, nullptr, nullptr},
    .round = round_products,
    .rank_step = rank_step,
    .is_right_by_column = is_right_by_column,
    .product = product,
    .begin_checksum = begin_checksum,
    .add_checksum = add_checksum,
    .end_checksum = end_checksum,
};

}  // namespace deltahub
