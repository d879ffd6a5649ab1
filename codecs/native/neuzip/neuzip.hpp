// neuzip_lossless: floats without a base. The exponent and the highest mantissa bits are entropy
// coded; sign and lower mantissa bits are raw. See codecs/spec/neuzip_lossless.md. A word is the
// bit pattern of one element.
//
// Hao, Cao, Mou, "NeuZip", arXiv 2410.20650, section 3.2: the exponents of trained weights are
// predictable. The highest mantissa bits are a little predictable, too, because the density of
// weights falls within an octave.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/bit_fields.hpp"
#include "base/prefetch_block.hpp"
#include "coder/decoded_block.hpp"
#include "coder/sequences.hpp"
#include "coder/stream_writer.hpp"
#include "coder/tables.hpp"
#include "kernels/ans/alphabet.hpp"
#include "kernels/codec_interface.hpp"

namespace deltahub {

struct FloatModel {
  int table_log = max_table_log;
  int zero_bits = 0;  // lowest mantissa bits, which are zero in all words
  int n_leading = 0;  // highest mantissa bits, which are coded with the exponent
  Frequencies table;
};

template <class Words>
constexpr int leading_bits(const FloatModel& model) {
  return Words::exponent_bits + model.n_leading;
}

template <class Words>
constexpr int float_raw_bits(const FloatModel& model) {
  return Words::mantissa_bits + 1 - model.zero_bits - model.n_leading;
}

// The alphabet of a model, as a function from a symbol to its parts.
template <class Words>
auto float_symbols(const FloatModel& model) {
  const int bits = leading_bits<Words>(model), raw = float_raw_bits<Words>(model);
  return [bits, raw](int symbol) { return float_symbol(symbol, bits, raw); };
}

inline std::vector<std::uint8_t> write_float_prelude(const FloatModel& model) {
  BitWriter out;
  out.put(unsigned(model.table_log), 4);
  out.put(unsigned(model.zero_bits), 6);
  out.put(unsigned(model.n_leading), 4);
  write_frequencies(out, model.table, model.table_log, 1);
  return out.take();
}

template <class Words>
std::optional<FloatModel> parse_float_prelude(const std::uint8_t* bytes, std::size_t size) {
  BitReader in(bytes, size);
  FloatModel model;
  model.table_log = int(in.get(4));
  if (model.table_log < min_table_log || model.table_log > max_table_log) return {};
  model.zero_bits = int(in.get(6));
  model.n_leading = int(in.get(4));
  if (model.zero_bits + model.n_leading > Words::mantissa_bits) return {};
  const int bits = leading_bits<Words>(model);
  if (bits > max_leading_bits) return {};
  if (!read_frequencies(in, model.table, n_float_symbols(bits), model.table_log, 1)) return {};
  if (!in.align() || in.byte_position() != size) return {};
  return model;
}

// A block's stream and its output, which is a whole number of words.
struct CodedFloats {
  std::span<const std::uint8_t> stream;
  std::span<std::uint8_t> out;
  std::uint64_t seed;  // of the checksum of the decoded words
  NextBlock next = {};
};

// The decoding table of a model. Immutable; threads share it.
template <class Words>
class FloatDecodingTable {
 public:
  using Word = typename Words::Word;

  FloatDecodingTable(const Kernels& kernels, const FloatModel& model)
      : kernels_(kernels), model_(model) {
    tables_.append({model.table}, model.table_log,
                   entries_of(n_float_symbols(leading_bits<Words>(model)),
                              float_symbols<Words>(model)));
  }

  DecodedBlock decode(const CodedFloats& block) const {
    Reader reader(*this, block);
    return reader.finish(0);
  }

  // Decodes two blocks. As long as both have whole chunks, the two streams are decoded interleaved,
  // because that is faster.
  std::array<DecodedBlock, 2> decode_two(const std::array<CodedFloats, 2>& blocks) const {
    Reader a(*this, blocks[0]), b(*this, blocks[1]);
    const std::size_t n_both = std::min(a.n, b.n);
    std::size_t first = 0;
    for (; first + chunk <= n_both && a.in.is_sound() && b.in.is_sound(); first += chunk) {
      Sequences::read_two<Word>(a.in, b.in, contexts, contexts, chunk, a.numbers, b.numbers,
                                a.ahead(first + chunk), b.ahead(first + chunk));
      a.join(first, chunk);
      b.join(first, chunk);
    }
    const DecodedBlock is_a = a.finish(first);
    return {is_a, b.finish(first)};
  }

 private:
  static constexpr Context contexts[chunk] = {};  // one context for all numbers

  // The state of decoding one block.
  struct Reader {
    Reader(const FloatDecodingTable& table, const CodedFloats& block)
        : table(table),
          in(table.kernels_, table.tables_, table.model_.table_log, block.stream.data(),
             block.stream.size()),
          words(table.kernels_, block.out.data(), block.out.size(), block.seed),
          next(block.next),
          n(block.out.size() / sizeof(Word)) {}

    // The memory to prefetch: output from word `next` on.
    PrefetchTargets ahead(std::size_t next) const {
      const auto at = std::uintptr_t(words.begin()) + next * sizeof(Word);
      return {at, at};
    }
    void join(std::size_t first, std::size_t part) {
      next.prefetch_share(first, first + part, n);
      const FloatModel& model = table.model_;
      table.kernels_.join[kind_of<Words>](numbers, part, model.zero_bits,
                                          Words::mantissa_bits - model.n_leading,
                                          words.at(first * sizeof(Word)));
      words.add((first + part) * sizeof(Word));
    }
    // Decodes the words of the block from word `first` on.
    DecodedBlock finish(std::size_t first) {
      for (; first < n && in.is_sound(); first += chunk) {
        const std::size_t part = std::min(chunk, n - first);
        in.template read<Word>(contexts, part, numbers, ahead(first + part));
        join(first, part);
      }
      return words.finish(in.is_finished());
    }

    const FloatDecodingTable& table;
    Sequences in;
    DecodedWords words;
    NextBlock next;
    std::size_t n;
    alignas(64) std::uint8_t numbers[chunk * sizeof(Word)];
  };

  const Kernels& kernels_;
  FloatModel model_;
  DecodingTables tables_;
};

// The encoding table of a model. Immutable; threads share it.
template <class Words>
class FloatEncodingTable {
 public:
  using Word = typename Words::Word;

  FloatEncodingTable(const Kernels& kernels, const FloatModel& model)
      : kernels_(kernels), model_(model) {
    tables_.append_rows(
        model.table, model.table_log, 1u << leading_bits<Words>(model),
        [](unsigned row) { return int(row) + n_escapes; }, float_symbols<Words>(model));
  }
  int table_log() const { return model_.table_log; }
  void find_row_indices(const Context*, const Word* numbers, std::size_t n,
                   std::uint16_t* row_indices) const {
    const int raw = float_raw_bits<Words>(model_);
    for (std::size_t i = 0; i < n; ++i) row_indices[i] = std::uint16_t(numbers[i] >> raw);
  }
  EncodingTablesView tables() const { return tables_.tables(); }

  // Encodes one block. The stream is valid until this thread encodes another block. Empty if the
  // words do not fit the model, which happens only if they are not from the planned frame.
  View encode(const std::uint8_t* words, std::size_t n, NextBlock next_block) const {
    static constexpr Context contexts[chunk] = {};  // one context for all numbers
    const int n_low = Words::mantissa_bits - model_.n_leading;
    std::uint8_t* const out = stream_buffer().of(stream_bound(n, Words::word_bits));
    StreamWriter<FloatEncodingTable> writer(kernels_, *this, out);
    Word numbers[chunk], all_bits = 0;
    for (std::size_t end = n; end > 0;) {
      const std::size_t first = (end - 1) / chunk * chunk, part = end - first;
      for (std::size_t i = 0; i < part; ++i) {
        const Word word = load<Word>(words + (first + i) * sizeof(Word));
        all_bits |= word;
        numbers[i] = Word(Words::split(word, n_low) >> model_.zero_bits);
      }
      next_block.prefetch_share(first, end, n);
      const auto next = std::uintptr_t(words) + (first > 0 ? first - chunk : 0) * sizeof(Word);
      writer.write_chunk(contexts, numbers, part, {next, next});
      end = first;
    }
    if (std::countr_zero(all_bits) < model_.zero_bits) return {};  // words of another frame
    return {out, writer.finish()};
  }

 private:
  const Kernels& kernels_;
  FloatModel model_;
  EncodingTables tables_;
};

}  // namespace deltahub
