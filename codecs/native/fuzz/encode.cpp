// Round trips of both codecs' encoders on words of any kind, for builds with sanitizers;
// tests/codecs/native/test_sanitized.py runs them. kernels/kernels.cpp is linked once for each
// instruction set.
//
//   fuzz_encode SEED ROUNDS
//
// Every buffer is a heap block of exactly the size that the codec gets, so that a sanitizer ends
// the program at the first byte read or written outside.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "frames/delta_codec.hpp"
#include "frames/delta_frame.hpp"
#include "frames/float_codec.hpp"

namespace deltahub {
namespace {

std::mt19937_64 random_engine;

std::uint64_t below(std::uint64_t end) { return random_engine() % end; }

// A heap buffer of exactly this size.
struct Exact {
  explicit Exact(std::size_t n) : size(n), data(new std::uint8_t[n]) {}
  explicit Exact(View bytes) : Exact(bytes.size()) {
    std::copy(bytes.begin(), bytes.end(), data.get());
  }
  View view() const { return {data.get(), size}; }
  bool operator==(const Exact& other) const { return std::ranges::equal(view(), other.view()); }
  std::size_t size;
  std::unique_ptr<std::uint8_t[]> data;
};

[[noreturn]] void fail(const char* what, int kind) {
  std::fprintf(stderr, "%s, words of kind %d\n", what, kind);
  std::abort();
}

// Fills `base` with words of similar magnitude or of random bits, and `source` with words close to
// them or far from them. In some rows both are equal.
template <class Words>
void make_pair(std::size_t rows, std::size_t columns, Exact& source, Exact& base) {
  using Word = typename Words::Word;
  const unsigned noise_bits = unsigned(below(Words::word_bits + 1));
  const std::uint64_t common_bits = below(4) ? random_engine() : 0;
  const std::uint64_t any_mask = below(3) ? low_masks[Words::word_bits - 2] : ~std::uint64_t(0);
  const std::uint64_t n_equal_rows_of_5 = below(5);
  // Or only one word differs.
  const std::size_t changed_index = below(8) ? rows * columns : below(rows * columns);
  // Some pairs have trailing zero bits in common, as floats converted from a shorter dtype do.
  const Word kept_bits = Word(~Word(0) << (below(3) ? 0 : below(Words::word_bits)));
  for (std::size_t i = 0; i < rows * columns; ++i) {
    const Word word = Word(common_bits ^ (random_engine() & any_mask));
    const bool is_equal =
        changed_index < rows * columns ? i != changed_index : i / columns % 5 < n_equal_rows_of_5;
    const Word noise =
        is_equal ? Word(0) : Word(random_engine() & low_masks[below(noise_bits + 1)]);
    const Word changed = Word(below(2) ? word + noise : word - noise);
    store<Word>(base.data.get() + i * sizeof(Word), Word(word & kept_bits));
    store<Word>(source.data.get() + i * sizeof(Word), Word(changed & kept_bits));
  }
}

Exact factor(std::size_t n) {
  Exact numbers(2 * n);
  const std::uint64_t end = std::uint64_t(1) << below(16);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t number = below(20) ? below(end) - end / 2 : 0x7fff + below(2);
    store<std::uint16_t>(numbers.data.get() + 2 * i, std::uint16_t(number));
  }
  return numbers;
}

void use_any_kernels() {
  const auto all = supported_kernels();
  chosen_kernels() = all[below(all.size())];
}

// The bytes of a block: whole rows of a frame, or a part of one row.
View block_of(const Exact& words, const FrameShape& frame, std::size_t row,
              const BlockShape& shape) {
  const std::size_t begin = (row * frame.columns + shape.first_column) * frame.word_bytes;
  return words.view().subspan(begin, shape.rows * shape.columns * frame.word_bytes);
}

void check_blocks(int kind, const FrameShape& frame, const DeltaEncoder& encoder,
                  const DeltaDecoder& decoder, const Exact& source, const Exact& base) {
  const bool are_parts = below(4) == 0;
  for (std::size_t row = 0; row < frame.rows;) {
    const std::size_t n_rows = are_parts ? 1 : std::min(below(40) + 1, frame.rows - row);
    for (std::size_t left = 0; left < frame.columns;) {
      const std::size_t rest = frame.columns - left, width = are_parts ? below(rest) + 1 : rest;
      const BlockShape shape{n_rows, width, left};
      const Exact words(block_of(source, frame, row, shape)),
          from(block_of(base, frame, row, shape));
      encoder.check_block(words.size, from.size, row, left, n_rows, width);
      const auto coded = encoder.encode(words.data.get(), from.data.get(), row, shape, {}, {});
      if (coded.empty()) fail("a block that cannot be coded", kind);
      const Exact stream{View(coded)};
      Exact out(words.size);
      const CodedBlock block{stream.data.get(), stream.size, from.data.get(), out.data.get(), 0};
      const DecodedBlock decoded = decoder.decode(block, shape);
      if (!decoded.is_sound || !(out == words) ||
          decoded.checksum != checksum_of(portable_kernels, words.data.get(), words.size, 0))
        fail("no round trip", kind);
      left += width;
    }
    row += n_rows;
  }
}

// Frames encoded in one call must be the same with every set of kernels and number of threads.
void check_frame(int kind, const FrameShape& frame, const Exact& source, const Exact& base) {
  const std::size_t parts = below(2) ? 1 : below(frame.columns) + 1;
  const std::size_t rows_per_block = parts > 1 ? 1 : below(frame.rows) + 1;
  if (parts > 1 && parts - 1 > (frame.columns - 1) / ((frame.columns + parts - 1) / parts)) return;
  const Exact header(184);
  std::fill_n(header.data.get(), header.size, std::uint8_t(0));
  std::optional<Exact> first;
  bool is_first = true;
  for (const Kernels* kernels : supported_kernels()) {
    chosen_kernels() = kernels;
    const DeltaFrame whole(kind, source.view(), base.view(), frame.rows, frame.columns,
                           rows_per_block, parts, header.view(), ~std::uint64_t(0), Effort::fast,
                           LowRank{});
    std::optional<Exact> found;
    if (whole.pays()) {
      Exact out(whole.max_bytes());
      const auto length = whole.write({out.data.get(), out.size}, below(3) + 1);
      if (length) found.emplace(View{out.data.get(), *length});
    }
    if (!is_first && (found.has_value() != first.has_value() || (found && !(*found == *first))))
      fail("kernels encode different frames", kind);
    if (is_first) first = std::move(found);
    is_first = false;
  }
}

template <class Words>
void check_deltas(int kind, std::size_t rows, std::size_t columns, const Exact& source,
                  const Exact& base) {
  const FrameShape frame{rows, columns, sizeof(typename Words::Word)};
  const bool has_factors = guard_bits(Words::mantissa_bits) > 0 && below(2);
  const std::size_t rank = has_factors ? below(std::min<std::size_t>({rows, columns, 6})) + 1 : 0;
  const Exact left = factor(rows * rank), right = factor(rank * columns);
  const int floor = has_factors ? int(below((1u << Words::exponent_bits) - 2)) + 1 : 0;
  use_any_kernels();
  const auto encoder =
      make_delta_encoder(kind, source.view(), base.view(), rows, columns, int(below(3)) + 1,
                         left.view(), right.view(), floor, below(2) == 0, below(4) > 0);
  use_any_kernels();
  const Exact prelude{View(encoder->prelude)};
  const auto decoder = make_delta_decoder(kind, prelude.view(), rows, columns, encoder->version);
  check_blocks(kind, frame, *encoder, *decoder, source, base);
  check_frame(kind, frame, source, base);
}

void check_floats(int kind, const Exact& source) {
  std::unique_ptr<FloatEncoder> encoder;
  try {
    encoder = make_float_encoder(kind, source.view());
  } catch (const std::invalid_argument&) {
    return;  // more exponents than a table holds
  }
  use_any_kernels();
  const auto decoder = make_float_decoder(kind, Exact(View(encoder->prelude)).view());
  const Exact stream{View(encoder->encode(source.view(), {}))};
  Exact out(source.size);
  const DecodedBlock decoded = decoder->decode({stream.view(), {out.data.get(), out.size}, 0});
  if (!decoded.is_sound || !(out == source) ||
      decoded.checksum != checksum_of(portable_kernels, source.data.get(), source.size, 0))
    fail("no round trip of floats", kind);
}

template <class Words>
void check(int kind) {
  constexpr std::size_t row_counts[] = {1, 1, 2, 5, 31, 32, 40, 65};
  constexpr std::size_t column_counts[] = {1, 7, 31, 32, 33, 64, 100, 300};
  const std::size_t rows = row_counts[below(std::size(row_counts))];
  const std::size_t columns = column_counts[below(std::size(column_counts))];
  Exact source(rows * columns * sizeof(typename Words::Word)), base(source.size);
  make_pair<Words>(rows, columns, source, base);
  check_deltas<Words>(kind, rows, columns, source, base);
  if constexpr (Words::exponent_bits > 0) check_floats(kind, source);
}

}  // namespace
}  // namespace deltahub

int main(int n_arguments, char** arguments) {
  using namespace deltahub;
  if (n_arguments != 3) return 2;
  random_engine.seed(std::strtoull(arguments[1], nullptr, 10));
  for (long round = std::strtol(arguments[2], nullptr, 10); round > 0; --round)
    for (int kind = 0; kind <= int(WordKind::int64); ++kind)
      with_words(WordKind(kind), [kind]<class Words>(Words) { check<Words>(kind); });
  std::puts("sound");
}
