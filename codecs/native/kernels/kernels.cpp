// One set of kernels. Compiled once for each instruction set, with -DDELTAHUB_ISA=<its name>.
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

void begin(DecoderState& stream, const std::uint8_t* bytes, std::size_t size, int table_log) {
  BackwardBits bits(bytes, size);
  stream = {.bytes = bytes, .size = size};
  for (std::size_t lane = 0; lane < n_lanes && bits.is_sound(); ++lane) {
    bits.skip(unsigned(table_log));
    stream.states[lane] = std::uint32_t(bits.peek() & low_masks[unsigned(table_log)]);
  }
  stream.position = bits.position();
  stream.is_sound = bits.is_sound();
}

template <class Value>
void row_indices(const std::uint8_t* values, const std::uint16_t* contexts, std::size_t n,
                 std::uint16_t* out) {
  using Wide = std::conditional_t<sizeof(Value) == 8, std::uint64_t, std::uint32_t>;
  std::size_t j = 0;
#ifdef DELTAHUB_HAS_ROW_INDICES
  if constexpr (sizeof(Value) == 2) j = fast_row_indices(values, contexts, n, out);
#endif
  for (; j < n; ++j) {
    const Context context = contexts[j];
    const Wide value = sign_extended<Value>(load<Value>(values + j * sizeof(Value)));
    const Wide negative = sign_mask(value);
    const Wide shifted = (value ^ negative) >> context_shift(context);
    const auto magnitude = std::int32_t(std::min(std::make_signed_t<Wide>(shifted),
                                                 std::make_signed_t<Wide>(cells_end)));
    // A float's exponent is the octave, its first mantissa bit the half of the octave.
    const auto halves = std::int32_t(std::bit_cast<std::uint32_t>(float(magnitude)) >> 22);
    // no branch, so that it is vectorized
    const std::int32_t is_high = -std::int32_t(magnitude >= n_linear);
    const std::int32_t cell = (magnitude & ~is_high) | ((halves - 2 * 131 + n_linear) & is_high);
    const auto sign = std::int32_t(negative & 1);
    out[j] = std::uint16_t(std::int32_t(context_table(context)) * std::int32_t(rows_per_table) +
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
      constexpr std::int32_t min_exponent = middle_exponent<Words> - 60;
      constexpr std::int32_t max_exponent = middle_exponent<Words> + 60;
      const auto exponent = std::int32_t(Words::exponent(from));
      const std::int32_t bounded = exponent < 1 ? 1 : exponent;
      power = (bounded < min_exponent   ? min_exponent
               : bounded > max_exponent ? max_exponent
                                        : bounded) -
              middle_exponent<Words>;
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
void predict_general(const std::uint8_t* words, const std::int32_t* product, std::size_t n,
                     int floor, std::uint8_t* out) {
  using Word = typename Words::Word;
  for (std::size_t j = 0; j < n; ++j) {
    const Word word = load<Word>(words + j * sizeof(Word));
    store<Word>(out + j * sizeof(Word), Word(predicted<Words>(word, product[j], floor)));
  }
}

#ifdef DELTAHUB_HAS_PREDICT
constexpr std::size_t group_words = 32;
constexpr int max_single_words = 4;  // of group_words words

template <class Words>
inline void predict_outside(const std::uint8_t* words, const std::int32_t* product, int floor,
                            std::uint8_t* out, std::uint32_t outside) {
  constexpr std::size_t size = sizeof(typename Words::Word);
  for (; outside != 0; outside &= outside - 1) {
    const auto j = std::size_t(std::countr_zero(outside));
    predict_general<Words>(words + j * size, product + j, 1, floor, out + j * size);
  }
}

// The general path for a group of words. In a function with a loop of constant length, so that
// compilers vectorize it.
template <class Words>
[[gnu::noinline]] void predict_group_general(const std::uint8_t* words, const std::int32_t* product,
                                             int floor, std::uint8_t* out) {
  predict_general<Words>(words, product, group_words, floor, out);
}

template <class Words>
void predict_group(const std::uint8_t* words, const std::int32_t* product, int floor,
                   std::uint8_t* out) {
  const std::uint32_t outside = predict_normal<Words>(words, product, floor, out);
  if (std::popcount(outside) > max_single_words)
    predict_group_general<Words>(words, product, floor, out);
  else
    predict_outside<Words>(words, product, floor, out, outside);
}

// Predicts the whole groups among n words by `path`, and the words outside its range by other
// paths; returns how many words the groups have.
template <class Words, class FastPath>
std::size_t predict_groups(const FastPath& path, const std::uint8_t* words,
                           const std::int32_t* product, std::size_t n, int floor,
                           std::uint8_t* out) {
  constexpr std::size_t group = group_words, size = sizeof(typename Words::Word);
  constexpr std::size_t max_groups = 32;
  std::size_t j = 0;
  while (j + group <= n) {
    std::uint32_t outside[max_groups];
    const std::size_t n_groups = std::min(max_groups, (n - j) / group);
    // First a loop without calls, so that constants stay in registers.
    for (std::size_t g = 0; g < n_groups; ++g) {
      const std::size_t at = j + g * group;
      outside[g] = path.predict(words + at * size, product + at, out + at * size);
    }
    for (std::size_t g = 0; g < n_groups; ++g, j += group) {
      if (std::popcount(outside[g]) > max_single_words)
        predict_group<Words>(words + j * size, product + j, floor, out + j * size);
      else
        predict_outside<Words>(words + j * size, product + j, floor, out + j * size, outside[g]);
    }
  }
  return j;
}

template <class Words>
void predict(const std::uint8_t* words, const std::int32_t* product, std::size_t n, int floor,
             std::uint8_t* out) {
  constexpr std::size_t group = group_words, size = sizeof(typename Words::Word);
  std::size_t j = 0;
  if constexpr (size == 2) {
    // If many words are outside the fast range, as with a fine unit, they are in all groups: the
    // first group decides.
    const FastPrediction<Words> fast(floor);
    if (fast.exists() && n >= group &&
        std::popcount(fast.predict(words, product, out)) <= max_single_words)
      j = predict_groups<Words>(fast, words, product, n, floor, out);
  }
#ifdef DELTAHUB_HAS_SCALED
  if constexpr (std::is_same_v<Words, Bf16Words>)
    if (const ScaledBf16 scaled(floor); j == 0 && scaled.exists())
      j = predict_groups<Words>(scaled, words, product, n, floor, out);
#endif
  for (; j + group <= n; j += group)
    predict_group<Words>(words + j * size, product + j, floor, out + j * size);
  predict_general<Words>(words + j * size, product + j, n - j, floor, out + j * size);
}
#else
// A function of its own, because inlined the single word would be vectorized, which computes all
// words to keep a few.
template <class Words>
[[gnu::noinline]] void predict_one(const std::uint8_t* word, const std::int32_t* product, int floor,
                                   std::uint8_t* out) {
  predict_general<Words>(word, product, 1, floor, out);
}

template <class Words>
void predict(const std::uint8_t* words, const std::int32_t* product, std::size_t n, int floor,
             std::uint8_t* out) {
  constexpr std::size_t group = FastPrediction<Words>::words_per_vector,
                        size = sizeof(typename Words::Word);
  const FastPrediction<Words> fast(floor);
  std::size_t j = 0;
  for (; fast.exists() && j + group <= n; j += group) {
    const auto outside = fast.predict(words + j * size, product + j, out + j * size);
    if (is_any(outside))
      for (std::size_t k = j; k < j + group; ++k)
        if (outside[k - j])
          predict_one<Words>(words + k * size, product + k, floor, out + k * size);
  }
  for (; j < n; ++j) predict_one<Words>(words + j * size, product + j, floor, out + j * size);
}
#endif

template <class Words>
void join(const std::uint8_t* values, std::size_t n, int zero_bits, int n_low,
          std::uint8_t* words) {
  using Word = typename Words::Word;
  for (std::size_t j = 0; j < n; ++j) {
    const Word value = Words::shifted_left(load<Word>(values + j * sizeof(Word)), zero_bits);
    store<Word>(words + j * sizeof(Word), Words::joined(value, n_low));
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
    .decode_symbols = {decode_symbols<std::uint8_t>, decode_symbols<std::uint16_t>,
                       decode_symbols<std::uint32_t>, decode_symbols<std::uint64_t>},
    .decode_two_streams = {decode_two_streams<std::uint8_t>, decode_two_streams<std::uint16_t>,
                           decode_two_streams<std::uint32_t>, decode_two_streams<std::uint64_t>},
    .row_indices = {row_indices<std::uint8_t>, row_indices<std::uint16_t>,
                    row_indices<std::uint32_t>, row_indices<std::uint64_t>},
    .encode_symbols = {encode_symbols<std::uint8_t>, encode_symbols<std::uint16_t>,
                       encode_symbols<std::uint32_t>, encode_symbols<std::uint64_t>},
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
