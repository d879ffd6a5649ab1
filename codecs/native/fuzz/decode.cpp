// Fuzzers of both decoders, of block ranges and of block tables, for builds with sanitizers.
// kernels/kernels.cpp is linked once for each instruction set, as in the module; all sets must
// agree.
//
//   as a libFuzzer target (make fuzz):  -DDELTAHUB_FUZZ=deltas, floats, runs or tables
//   as a standalone program (tests/codecs/native/test_sanitized.py):
//       fuzz_decode deltas|floats|runs|tables SEED ROUNDS FILE...
//     runs every file, then ROUNDS mutations of each.
//
// Every buffer is a heap block of exactly the size that the decoder gets, so that a sanitizer ends
// the program at the first byte read or written outside.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "frames/delta_codec.hpp"
#include "frames/float_codec.hpp"
#include "fuzz/block_runs.hpp"
#include "fuzz/block_tables.hpp"
#include "fuzz/input.hpp"

namespace deltahub {
namespace {

// decode(kernels, out): whether the kernels accept the input. All sets of kernels must agree and
// decode the same words. Returns these words, or nothing if the input is refused.
template <class Decode>
std::optional<Bytes> compare(std::size_t out_bytes, Decode&& decode) {
  std::optional<Bytes> expected;
  int n_accepted = 0, n_refused = 0;
  for (const Kernels* kernels : supported_kernels()) {
    Exact out(out_bytes);
    std::memset(out.data.get(), 0xee, out_bytes);
    const bool is_accepted = decode(*kernels, out.data.get());
    (is_accepted ? n_accepted : n_refused)++;
    if (!is_accepted) continue;
    const Bytes words(out.view().begin(), out.view().end());
    if (n_accepted > 1 && words != expected) fail("two sets of kernels decode different words");
    expected = words;
  }
  if (n_accepted > 0 && n_refused > 0) fail("one set of kernels accepts what another refuses");
  return expected;
}

// The interface that the Python module calls must give the same result. parse(): a decoder, or
// std::invalid_argument; decode(decoder, out): whether the decoder accepts the input.
template <class Parse, class Decode>
void compare_with_module(const std::optional<Bytes>& expected, bool is_parsed,
                         std::size_t out_bytes, Parse&& parse, Decode&& decode) {
  chosen_kernels() = &portable_kernels;
  try {
    const auto decoder = parse();
    if (!is_parsed) fail("the module accepts an invalid prelude");
    Exact out(out_bytes);
    const bool is_accepted = decode(*decoder, out.data.get());
    if (is_accepted != expected.has_value()) fail("the module accepts something else");
    if (is_accepted && !std::ranges::equal(out.view(), *expected))
      fail("the module makes other words");
  } catch (const std::invalid_argument&) {
    if (expected) fail("the module refuses what its kernels accept");
  }
}

bool is_same(View view, const Bytes& bytes) { return std::ranges::equal(view, bytes); }

template <class Words>
void decode_deltas(int kind, int version, Input& in) {
  const std::size_t rows = in.number(most_rows) + 1, columns = in.number(most_columns) + 1;
  BlockShape shape;
  shape.rows = std::min(in.number(rows) + 1, std::max<std::size_t>(most_words / columns, 1));
  shape.columns = columns - in.number(shape.rows == 1 ? columns : 1);
  shape.first_column = in.number(columns - shape.columns + 1);
  const std::size_t prelude_bytes = in.number(65536), base_bytes = in.number(65536);
  const Exact prelude(in.bytes(prelude_bytes));
  const View some_base = in.bytes(base_bytes);
  const Exact stream(in.rest());
  Exact base(shape.rows * shape.columns * sizeof(typename Words::Word));
  for (std::size_t i = 0; i < base.size; ++i)
    base.data[i] = some_base.empty() ? 0 : some_base[i % some_base.size()];

  std::optional<Bytes> words;
  const auto parsed = parse_fields<Words>(prelude.data.get(), prelude.size, rows, columns, version);
  if (parsed) {
    if (!is_same(prelude.view().first(parsed->stream_begin), write_fields(parsed->model)))
      fail("a model has two preludes");
    const Exact columns_stream(prelude.view().subspan(parsed->stream_begin));
    words = compare(base.size, [&](const Kernels& kernels, std::uint8_t* out) {
      FrameModel<Words> frame(kernels, Model(parsed->model), true);
      return frame.read_columns(columns_stream.data.get(), columns_stream.size, columns) &&
             decode_block(frame, shape, {stream.data.get(), stream.size, base.data.get(), out, 0})
                 .is_sound;
    });
  }
  compare_with_module(
      words, parsed.has_value(), base.size,
      [&] { return make_delta_decoder(kind, prelude.view(), rows, columns, version); },
      [&](const DeltaDecoder& decoder, std::uint8_t* out) {
        decoder.check_block(base.size, base.size, 0, shape.first_column, shape.rows, shape.columns);
        return decoder.decode({stream.data.get(), stream.size, base.data.get(), out, 0}, shape)
            .is_sound;
      });
}

template <class Words>
void decode_floats(int kind, Input& in) {
  const std::size_t count = in.number(most_words) + 1;
  const std::size_t prelude_bytes = in.number(65536);
  const Exact prelude(in.bytes(prelude_bytes));
  const Exact stream(in.rest());
  const std::size_t out_bytes = count * sizeof(typename Words::Word);
  std::optional<Bytes> words;
  const auto model = parse_float_prelude<Words>(prelude.data.get(), prelude.size);
  if (model) {
    if (!is_same(prelude.view(), write_float_prelude(*model))) fail("a table has two preludes");
    words = compare(out_bytes, [&](const Kernels& kernels, std::uint8_t* out) {
      return FloatDecodingTable<Words>(kernels, *model)
          .decode({stream.view(), {out, out_bytes}, 0})
          .is_sound;
    });
  }
  compare_with_module(
      words, model.has_value(), out_bytes, [&] { return make_float_decoder(kind, prelude.view()); },
      [&](const FloatDecoder& decoder, std::uint8_t* out) {
        return decoder.decode({stream.view(), {out, out_bytes}, 0}).is_sound;
      });
}

[[maybe_unused]] void deltas(View bytes) {
  Input in(bytes);
  constexpr std::size_t n_kinds = std::size_t(WordKind::int64) + 1;
  const auto choice = in.number(2 * n_kinds);
  const int kind = int(choice % n_kinds), version = first_delta_version + int(choice / n_kinds);
  with_words(WordKind(kind), [&]<class Words>(Words) { decode_deltas<Words>(kind, version, in); });
}

[[maybe_unused]] void floats(View bytes) {
  Input in(bytes);
  const int kind = int(in.number(std::size_t(WordKind::int8)));
  with_words(WordKind(kind), [&]<class Words>(Words) {
    if constexpr (Words::exponent_bits > 0) decode_floats<Words>(kind, in);
  });
}

#ifndef DELTAHUB_FUZZ

std::mt19937_64 random_engine;

std::uint64_t below(std::uint64_t end) { return random_engine() % end; }

Bytes mutated(Bytes bytes) {
  for (auto n = below(3) + 1; n > 0; --n) {
    const auto at = bytes.empty() ? 0 : below(bytes.size());
    switch (bytes.empty() ? 4 : below(6)) {
      case 0: bytes[at] ^= std::uint8_t(1 << below(8)); break;
      case 1: bytes[at] = std::uint8_t(random_engine()); break;
      case 2: bytes.resize(bytes.size() - below(std::min<std::size_t>(bytes.size(), 64))); break;
      case 3: bytes.erase(bytes.begin() + std::ptrdiff_t(at)); break;
      case 4: bytes.insert(bytes.begin() + std::ptrdiff_t(at), std::uint8_t(random_engine())); break;
      default: for (auto i = at; i < bytes.size(); ++i) bytes[i] = std::uint8_t(random_engine());
    }
  }
  return bytes;
}

int run(int n_arguments, char** arguments) {
  if (n_arguments < 5) return 2;
  const std::string decoder = arguments[1];
  const std::map<std::string, void (*)(View)> fuzzers = {
      {"deltas", deltas}, {"floats", floats}, {"runs", runs}, {"tables", tables}};
  if (!fuzzers.contains(decoder)) return 2;
  const auto fuzz = fuzzers.at(decoder);
  random_engine.seed(std::strtoull(arguments[2], nullptr, 10));
  const long rounds = std::strtol(arguments[3], nullptr, 10);
  for (int i = 4; i < n_arguments; ++i) {
    std::ifstream file(arguments[i], std::ios::binary);
    if (!file) fail("a file that cannot be read");
    const Bytes bytes{std::istreambuf_iterator<char>(file), {}};
    fuzz(bytes);
    for (long round = 0; round < rounds; ++round) fuzz(mutated(bytes));
  }
  std::puts("sound");
  return 0;
}

#endif

}  // namespace
}  // namespace deltahub

#ifdef DELTAHUB_FUZZ
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  deltahub::DELTAHUB_FUZZ({bytes, size});
  return 0;
}
#else
int main(int n_arguments, char** arguments) { return deltahub::run(n_arguments, arguments); }
#endif
