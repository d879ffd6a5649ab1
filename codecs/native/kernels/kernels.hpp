// The inner loops of decoding, for one instruction set each; all give the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deltahub {

// A stream in mid-reading. The interface of kernels is plain memory: see base/isa.hpp.
struct StreamState {
  const std::uint8_t* bytes = nullptr;
  std::size_t size = 0;
  std::size_t position = 0;  // bits not yet read
  bool is_sound = false;
  std::uint32_t states[32] = {};
  // Once few bits are left they are read from here, with zeros before and behind them: so rounds need
  // not look at each number, and whether there was enough shows afterwards.
  bool is_in_rest = false;
  std::uint8_t rest[640] = {};
};

// Where the words and their base lie that are wanted after the numbers in hand. Their lines are asked
// for one by one, between the rounds: all at once they would fill the queues.
struct Ahead {
  std::uintptr_t words, base;
};

// How a symbol is encoded: state -> (state + add_for_digits) >> 16 digits to write, then
// next_states[(state >> digits) + first]. States run from 2^table_log to 2^(table_log + 1) - 1.
struct Row {
  std::uint32_t add_for_digits;
  std::int16_t first;
  std::uint8_t width;
  std::uint8_t is_missing;  // neither the symbol nor its escape is in the table
};

// Tables as kernels write by them. Beside the first and the last element of the last two there are a
// few of none, since kernels load an element with its neighbours. Next states lie `table_stride`
// apart from table to table.
struct EncodingTables {
  const Row* rows;
  const std::uint32_t* short_rows;  // of numbers of at most 16 bits; see short_row()
  const std::uint16_t* next_states;
};

// A stream in mid-writing.
struct WriterState {
  std::uint8_t* at = nullptr;  // 8 bytes can be written from here on
  std::uint64_t pending = 0;   // fewer than 8 bits that are not yet written
  unsigned n_pending = 0;
  std::uint32_t is_missing = 0;  // a number was in no table
  std::uint32_t states[32] = {};
};

// A checksum in mid-making.
struct ChecksumState {
  std::size_t n;
  std::uint64_t seed;
  std::size_t n_done;  // bytes that the sums hold
  std::uint64_t sums[8];
  std::uint8_t secret[192];
};

// The context of each class, whole and as planes of bytes; and the table beside a shift below 16 in
// one plane, which holds all of them where they are `narrow`.
struct ClassTable {
  std::uint16_t contexts[64] = {};
  std::uint8_t low[64] = {}, high[64] = {}, both[64] = {};
  bool are_narrow = true;

  void set(std::size_t z, std::uint16_t context) {
    contexts[z] = context;
    low[z] = std::uint8_t(context);
    high[z] = std::uint8_t(context >> 8);
    both[z] = std::uint8_t((context >> 6 & 0xf0) | (context & 0x0f));
    are_narrow = are_narrow && (context & 0x03f0) == 0;
  }
};

// Of the counts of two contexts that share a table: the sum over count * log2(count), in bits, and
// how many counts are not 0.
struct SharedCost {
  float own;
  std::uint32_t n_used;
};
inline constexpr std::size_t shared_together = 16;

struct Kernels {
  const char* name;

  // Reads the marker and the first states. numbers_*: one sequence of n numbers; out of range reads
  // nothing and makes the stream unsound.
  void (*begin)(StreamState& stream, const std::uint8_t* bytes, std::size_t size, int table_log);
  using Numbers = void (*)(StreamState& stream, const std::uint32_t* entries,
                           const std::uint16_t* contexts, std::size_t n, std::uint8_t* out,
                           Ahead ahead);
  Numbers numbers[4];  // of 8, 16, 32 and 64 bits
  // The same for two sound streams, which some processors read faster together.
  using TwoNumbers = void (*)(StreamState* const (&streams)[2], const std::uint32_t* entries,
                              const std::uint16_t* const (&contexts)[2], std::size_t n,
                              std::uint8_t* const (&out)[2], const Ahead (&ahead)[2]);
  TwoNumbers two_numbers[4];

  // places[j]: the row of the number in its context's table: 82 rows a table, two a cell.
  using Places = void (*)(const std::uint8_t* numbers, const std::uint16_t* contexts, std::size_t n,
                          std::uint16_t* places);
  Places places[4];
  // Writes n numbers, the first of which is of lane 0, from the last to the first.
  using Write = void (*)(WriterState& stream, const EncodingTables& tables,
                         const std::uint16_t* contexts, const std::uint8_t* numbers,
                         const std::uint16_t* places, std::size_t n, Ahead ahead);
  Write write[4];

  // For each kind of words (see WordKind):
  // contexts[j] = classes[clamp(scale + columns[j] - 4 * max(exponent of words[j], 1), 0, last)];
  // columns may be null.
  using Contexts = void (*)(const std::uint8_t* words, std::size_t n, int scale,
                            const std::int16_t* columns, const ClassTable& classes, int last,
                            std::uint16_t* contexts);
  Contexts contexts[10];
  // deltas[j]: from base[j] to words[j].
  using Deltas = void (*)(const std::uint8_t* words, const std::uint8_t* base, std::size_t n,
                          std::uint8_t* deltas);
  Deltas deltas[10];
  // sizes[j] = |from base[j] to words[j]|, times 2^(exponent of base[j] - middle) where they are
  // `weighted`; returns their sum. For planning: exponents further than 60 from the middle count as
  // 60, and sums are rounded, but alike in all kernels.
  using Sizes = float (*)(const std::uint8_t* words, const std::uint8_t* base, std::size_t n,
                          bool is_weighted, float* sizes);
  Sizes sizes[10];
  // bins[j]: of the difference from base[j] to words[j]; see kernels/magnitude_bins.hpp. For planning.
  using Bin = void (*)(const std::uint8_t* words, const std::uint8_t* base, std::size_t n,
                       std::uint16_t* bins);
  Bin bins[10];
  // Of n counts and others, a multiple of `shared_together`; their sums are below 2^31. For planning.
  SharedCost (*shared_cost)(const std::uint32_t* counts, const std::uint32_t* others,
                            std::size_t n);
  // out = words moved by the deltas. May be in place.
  using Apply = void (*)(const std::uint8_t* words, const std::uint8_t* deltas, std::size_t n,
                         std::uint8_t* out);
  Apply apply[10];
  // The same of the deltas times 2^stride; the `stride` last digits of what comes out are zero.
  using ApplyStrided = void (*)(const std::uint8_t* words, const std::uint8_t* deltas,
                                std::size_t n, unsigned stride, std::uint8_t* out);
  ApplyStrided apply_strided[10];
  // predicted = words + product, rounded to the dtype. Null for a kind without prediction.
  using Predict = void (*)(const std::uint8_t* words, const std::int32_t* product, std::size_t n,
                           int floor, std::uint8_t* predicted);
  Predict predict[10];
  // words of numbers as neuzip_lossless codes them: exponent and leading digits of the mantissa,
  // sign, n_low other digits of which the last zero_bits are left out. Null for integers.
  using Join = void (*)(const std::uint8_t* numbers, std::size_t n, int zero_bits, int n_low,
                        std::uint8_t* words);
  Join join[10];
  // Rounds products to so many binary digits, to nearest, ties to even, modulo 2^32.
  void (*round)(std::int32_t* products, std::size_t n, int digits);
  // product[i][j] = sum over k of left[i][k] * right[k][j], modulo 2^32, for n_rows <= 4 rows of
  // `rank` factors and n columns. right: the first of these columns as fm_delta/right_factor.hpp lays them
  // out, for ranks that are multiples of `rank_step`; product: rows of n.
  std::size_t rank_step;
  bool is_right_by_column;  // else `rank_step` components of all columns, and then the next
  void (*product)(const std::int16_t* left, std::size_t n_rows, int rank, const std::int16_t* right,
                  std::size_t stride, std::size_t n, std::int32_t* product);
  // XXH3 of 64 bits, of n bytes that become ready one after another: `add` takes in what it can of
  // the first n_ready; `end` needs all, and tells.
  void (*begin_checksum)(ChecksumState& state, std::size_t n, std::uint64_t seed);
  void (*add_checksum)(ChecksumState& state, const std::uint8_t* bytes, std::size_t n_ready);
  std::uint64_t (*end_checksum)(ChecksumState& state, const std::uint8_t* bytes);
};

extern const Kernels portable_kernels;
#ifdef __x86_64__
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels, avx512_gathers_kernels;
#endif

}  // namespace deltahub
