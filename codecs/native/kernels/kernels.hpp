// The kernels: the inner loops of decoding and encoding, compiled once for each instruction set.
// All sets give the same bytes. A word is the bit pattern of an element (base/words.hpp); a value
// is a tANS symbol and its raw bits (kernels/ans/alphabet.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

namespace deltahub {

// A stream during decoding. Kernels exchange plain memory only: see base/isa.hpp.
struct DecoderState {
  const std::uint8_t* bytes = nullptr;
  std::size_t size = 0;
  std::size_t position = 0;  // bits not yet read
  bool is_sound = false;
  std::uint32_t states[32] = {};
  // Once few bits are left they are copied here, with zeros before and after them. So rounds need
  // no check for each value; whether there were enough bits is checked afterwards.
  bool is_in_tail = false;
  std::uint8_t tail[640] = {};
};

// Addresses to prefetch: the words and the base needed after the current values. Rounds prefetch
// their cache lines one by one, because all at once would fill the load queues.
struct PrefetchTargets {
  std::uintptr_t words, base;
};

// How a symbol is encoded. n_bits = (state + add_for_bits) >> 16; the lowest n_bits of the state
// are written; the next state is next_states[(state >> n_bits) + next_offset]. States are
// 2^table_log to 2^(table_log + 1) - 1.
struct EncodingRow {
  std::uint32_t add_for_bits;
  std::int16_t next_offset;
  std::uint8_t width;
  std::uint8_t is_missing;  // neither the symbol nor its escape is in the table
};

// Encoding tables. packed_rows and next_states have padding elements before the first and after
// the last one, because kernels load an element with its neighbours. The next states of two tables
// begin `table_stride` elements apart.
struct EncodingTablesView {
  const EncodingRow* rows;
  const std::uint32_t* packed_rows;  // for values of at most 16 bits; see packed_row()
  const std::uint16_t* next_states;
};

// A stream during encoding.
struct EncoderState {
  std::uint8_t* at = nullptr;  // 8 bytes from here on may be written
  std::uint64_t pending = 0;   // fewer than 8 bits that are not yet written
  unsigned n_pending = 0;
  std::uint32_t is_missing = 0;  // nonzero if a table lacked both a symbol and its escape
  std::uint32_t states[32] = {};
};

// A checksum (XXH3-64) in progress.
struct ChecksumState {
  std::size_t n;
  std::uint64_t seed;
  std::size_t n_done;  // bytes that the accumulators contain
  std::uint64_t accumulators[8];
  std::uint8_t secret[192];
};

// The context of each class; the same as two tables of low and high bytes; and one table that
// packs the tANS table (4 bits) with the shift, which is valid if all shifts are below 16
// (`fits_packed`).
struct ClassTable {
  std::uint16_t contexts[64] = {};
  std::uint8_t low[64] = {}, high[64] = {}, packed[64] = {};
  bool fits_packed = true;

  void set(std::size_t z, std::uint16_t context) {
    contexts[z] = context;
    low[z] = std::uint8_t(context);
    high[z] = std::uint8_t(context >> 8);
    packed[z] = std::uint8_t((context >> 6 & 0xf0) | (context & 0x0f));
    fits_packed = fits_packed && (context & 0x03f0) == 0;
  }
};

// Of two histograms whose contexts share a table: the sum of count * log2(count), in bits, and the
// number of counts that are not 0.
struct SharedCost {
  float own;
  std::uint32_t n_used;
};
inline constexpr std::size_t shared_cost_lanes = 16;

struct Kernels {
  const char* name;

  // Reads the end marker and the first states.
  void (*begin)(DecoderState& stream, const std::uint8_t* bytes, std::size_t size, int table_log);
  using DecodeSymbols = void (*)(DecoderState& stream, const std::uint32_t* entries,
                                 const std::uint16_t* contexts, std::size_t n, std::uint8_t* out,
                                 PrefetchTargets targets);
  DecodeSymbols decode_symbols[4];  // of 8, 16, 32 and 64 bits
  // The same for two sound streams, which some processors decode faster together.
  using DecodeTwoStreams = void (*)(DecoderState* const (&streams)[2], const std::uint32_t* entries,
                                    const std::uint16_t* const (&contexts)[2], std::size_t n,
                                    std::uint8_t* const (&out)[2],
                                    const PrefetchTargets (&targets)[2]);
  DecodeTwoStreams decode_two_streams[4];

  // row_indices[j]: the row of values[j] in the encoding table of its context. A table has 82
  // rows, two for each cell.
  using FindRowIndices = void (*)(const std::uint8_t* values, const std::uint16_t* contexts,
                                  std::size_t n, std::uint16_t* row_indices);
  FindRowIndices row_indices[4];
  // Encodes n values, from the last to the first. values[0] belongs to lane 0.
  using EncodeSymbols = void (*)(EncoderState& stream, const EncodingTablesView& tables,
                                 const std::uint16_t* contexts, const std::uint8_t* values,
                                 const std::uint16_t* row_indices, std::size_t n,
                                 PrefetchTargets targets);
  EncodeSymbols encode_symbols[4];

  // For each kind of words (see WordKind):
  // contexts[j] = classes[clamp(scale + columns[j] - 4 * max(exponent of words[j], 1), 0, last)];
  // columns may be null.
  using Contexts = void (*)(const std::uint8_t* words, std::size_t n, int scale,
                            const std::int16_t* columns, const ClassTable& classes, int last,
                            std::uint16_t* contexts);
  Contexts contexts[10];
  // deltas[j]: the delta from base[j] to words[j].
  using Deltas = void (*)(const std::uint8_t* words, const std::uint8_t* base, std::size_t n,
                          std::uint8_t* deltas);
  Deltas deltas[10];
  // sizes[j] = |delta from base[j] to words[j]|, times 2^(exponent of base[j] - bias) if
  // is_weighted; returns their sum. For planning: the exponent is clamped to at most 60 from the
  // bias. Sums are rounded, identically in all kernels.
  using Sizes = float (*)(const std::uint8_t* words, const std::uint8_t* base, std::size_t n,
                          bool is_weighted, float* sizes);
  Sizes sizes[10];
  // bins[j]: the bin of the delta from base[j] to words[j]; see kernels/magnitude_bins.hpp. For
  // planning.
  using Bin = void (*)(const std::uint8_t* words, const std::uint8_t* base, std::size_t n,
                       std::uint16_t* bins);
  Bin bins[10];
  // The cost of counts_a + counts_b. n must be a multiple of `shared_cost_lanes`, each sum of two
  // counts below 2^31. For planning.
  SharedCost (*shared_cost)(const std::uint32_t* counts_a, const std::uint32_t* counts_b,
                            std::size_t n);
  // out[j]: words[j] moved by deltas[j]. May be in place.
  using Apply = void (*)(const std::uint8_t* words, const std::uint8_t* deltas, std::size_t n,
                         std::uint8_t* out);
  Apply apply[10];
  // The same with the deltas times 2^stride; the lowest `stride` bits of the result are set to
  // zero.
  using ApplyStrided = void (*)(const std::uint8_t* words, const std::uint8_t* deltas,
                                std::size_t n, unsigned stride, std::uint8_t* out);
  ApplyStrided apply_strided[10];
  // predicted = words + product, rounded to the dtype. Null for a kind of words without
  // prediction.
  using Predict = void (*)(const std::uint8_t* words, const std::int32_t* product, std::size_t n,
                           int floor, std::uint8_t* predicted);
  Predict predict[10];
  // The words of values as neuzip_lossless codes them: exponent, leading mantissa bits, sign, then
  // n_low mantissa bits, without the lowest zero_bits. Null for integers.
  using Join = void (*)(const std::uint8_t* values, std::size_t n, int zero_bits, int n_low,
                        std::uint8_t* words);
  Join join[10];
  // Rounds products to n_bits significant bits, to nearest, ties to even, modulo 2^32.
  void (*round)(std::int32_t* products, std::size_t n, int n_bits);
  // product[i][j] = sum over k of left[i][k] * right[k][j], modulo 2^32, for n_rows <= 4 rows of
  // the left factor and n columns of the right one. rank: a multiple of `rank_step`. right: the
  // first of the n columns, in the layout of fm_delta/right_factor.hpp. product: rows of n.
  std::size_t rank_step;
  bool is_right_by_column;  // else: `rank_step` components of all columns, then the next ones
  void (*product)(const std::int16_t* left, std::size_t n_rows, int rank, const std::int16_t* right,
                  std::size_t stride, std::size_t n, std::int32_t* product);
  // XXH3-64 of n bytes that become ready one after another. `add` consumes whole blocks of the
  // first n_ready bytes; `end` needs all n bytes and returns the hash.
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
