// A fuzzer of the decoder for builds with sanitizers; tests/codecs/test_fm_delta_sanitized.py runs it.
//
//   g++ -std=c++20 -O1 -fsanitize=address,undefined -fno-sanitize-recover=all fuzz_decode.cpp
//   ./a.out SEED ROUNDS
//
// Every buffer is a heap block of exactly the size that the kernel is told, so that one byte read
// or written outside of it ends the program.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "decode.hpp"
#include "encode.hpp"
#include "model.hpp"
#include "planner.hpp"
#include "words.hpp"

using namespace deltahub;
using Bytes = std::vector<std::uint8_t>;

namespace {

std::mt19937_64 random_engine;

std::uint64_t below(std::uint64_t end) { return random_engine() % end; }

// An exact copy: vectors may have capacity to spare.
struct Exact {
  explicit Exact(const Bytes& bytes) : size(bytes.size()), data(new std::uint8_t[size]) {
    std::copy(bytes.begin(), bytes.end(), data.get());
  }
  std::size_t size;
  std::unique_ptr<std::uint8_t[]> data;
};

void fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// Words around one magnitude or of any bits, and words near them or far.
template <class Words>
void make_pair(std::size_t n, Bytes& source, Bytes& base) {
  using Word = typename Words::Word;
  source.resize(n * sizeof(Word));
  base.resize(n * sizeof(Word));
  const unsigned noise_bits = unsigned(below(Words::word_bits + 1));
  const std::uint64_t same = below(4) ? random_engine() : 0;
  const std::uint64_t any_mask = below(3) ? low_masks[Words::word_bits - 2] : ~std::uint64_t(0);
  for (std::size_t i = 0; i < n; ++i) {
    const Word word = Word(same ^ (random_engine() & any_mask));
    const Word noise = Word(random_engine() & low_masks[below(noise_bits + 1)]);
    store<Word>(base.data() + i * sizeof(Word), word);
    store<Word>(source.data() + i * sizeof(Word), Word(below(2) ? word + noise : word - noise));
  }
}

Bytes mutated(Bytes bytes) {
  for (auto n = below(3) + 1; n > 0; --n) {
    const auto at = bytes.empty() ? 0 : below(bytes.size());
    switch (bytes.empty() ? 4 : below(6)) {
      case 0: bytes[at] ^= std::uint8_t(1 << below(8)); break;
      case 1: bytes[at] = std::uint8_t(random_engine()); break;
      case 2: bytes.resize(at); break;
      case 3: bytes.erase(bytes.begin() + std::ptrdiff_t(at)); break;
      case 4: bytes.insert(bytes.begin() + std::ptrdiff_t(at), std::uint8_t(random_engine())); break;
      default: for (auto i = at; i < bytes.size(); ++i) bytes[i] = std::uint8_t(random_engine());
    }
  }
  return bytes;
}

template <class Words>
Bytes decoded(const Decoder<Words>& decoder, const Bytes& stream, const Bytes& base, bool& is_sound) {
  const Exact in(stream), from(base);
  Exact out(Bytes(base.size(), 0xee));
  is_sound = decoder.decode(in.data.get(), in.size, from.data.get(), out.data.get(),
                            base.size() / sizeof(typename Words::Word));
  return Bytes(out.data.get(), out.data.get() + out.size);
}

template <class Words>
void fuzz() {
  constexpr std::size_t sizes[] = {1, 2, 7, 8, 9, 15, 16, 17, 64, 257, 1000};
  Bytes source, base;
  make_pair<Words>(sizes[below(std::size(sizes))], source, base);
  const std::size_t n = source.size() / sizeof(typename Words::Word);
  const Exact exact_source(source), exact_base(base);
  const auto plan = plan_model<Words>(exact_source.data.get(), exact_base.data.get(), n);
  const Bytes prelude = write_prelude(plan.model, Words::key_bits);
  const auto model =
      parse_prelude(Exact(prelude).data.get(), prelude.size(), Words::key_bits, Words::word_bits);
  if (!model) fail("our own prelude is refused");

  Exact out(Bytes(Encoder<Words>::bound_bytes(n)));
  const std::size_t size = Encoder<Words>(*model).encode(exact_source.data.get(),
                                                         exact_base.data.get(), n, out.data.get());
  const Bytes stream(out.data.get(), out.data.get() + size);
  const Decoder<Words> decoder(*model);
  bool is_sound = false;
  if (decoded(decoder, stream, base, is_sound) != source || !is_sound) fail("no round trip");

  for (int i = 0; i < 20; ++i) {
    const Bytes changed = mutated(stream);
    const Bytes result = decoded(decoder, changed, base, is_sound);
    if (is_sound && changed != stream && result == source) fail("two streams for the same words");
    // The same stream against another base, or more or fewer words.
    Bytes other_source, other_base;
    make_pair<Words>(below(40) + 1, other_source, other_base);
    decoded(decoder, changed, other_base, is_sound);

    const Bytes changed_prelude = mutated(prelude);
    const Exact exact_prelude(changed_prelude);
    const auto changed_model = parse_prelude(exact_prelude.data.get(), exact_prelude.size,
                                             Words::key_bits, Words::word_bits);
    if (!changed_model) continue;
    if (write_prelude(*changed_model, Words::key_bits) != changed_prelude)
      fail("two preludes for the same model");
    const Decoder<Words> changed_decoder(*changed_model);
    decoded(changed_decoder, stream, base, is_sound);
    decoded(changed_decoder, changed, base, is_sound);
    Exact room(Bytes(Encoder<Words>::bound_bytes(n)));  // any model encodes any words
    const std::size_t used = Encoder<Words>(*changed_model)
                                 .encode(exact_source.data.get(), exact_base.data.get(), n,
                                         room.data.get());
    const Bytes again(room.data.get(), room.data.get() + used);
    if (decoded(changed_decoder, again, base, is_sound) != source || !is_sound)
      fail("no round trip with another model");
  }
}

}  // namespace

int main(int n_arguments, char** arguments) {
  if (n_arguments != 3) return 2;
  random_engine.seed(std::strtoull(arguments[1], nullptr, 10));
  for (long round = std::strtol(arguments[2], nullptr, 10); round > 0; --round)
    for (int kind = 0; kind <= int(WordKind::int64); ++kind)
      with_words(WordKind(kind), []<class Words>(Words) { fuzz<Words>(); });
  std::puts("sound");
}
