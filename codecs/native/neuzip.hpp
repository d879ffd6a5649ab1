// neuzip_lossless: floats on their own. The exponent is coded, sign and mantissa are raw.
//
// Hao, Cao, Mou, "NeuZip", arXiv 2410.20650, section 3.2: of a trained weight only the exponent is
// predictable.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "decode.hpp"
#include "encode.hpp"
#include "histograms.hpp"

namespace deltahub {

struct FloatModel {
  int table_log = max_table_log;
  int zero_bits = 0;  // lowest mantissa digits that are zero in all words
  Frequencies table;
};

template <class Words>
constexpr int float_raw_bits(int zero_bits) {
  return Words::mantissa_bits + 1 - zero_bits;
}

inline std::vector<std::uint8_t> write_float_prelude(const FloatModel& model) {
  BitWriter out;
  out.put(unsigned(model.table_log), 4);
  out.put(unsigned(model.zero_bits), 6);
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
  if (model.zero_bits > Words::mantissa_bits) return {};
  if (!read_frequencies(in, model.table, n_float_symbols(Words::exponent_bits), model.table_log, 1))
    return {};
  if (!in.align() || in.byte_position() != size) return {};
  return model;
}

// The model of all words, counted exactly; nothing where they have more exponents than a table.
template <class Words>
std::optional<FloatModel> plan_floats(const std::uint8_t* words, std::size_t n) {
  using Word = typename Words::Word;
  std::vector<std::uint64_t> counts(std::size_t(n_float_symbols(Words::exponent_bits)));
  Word seen = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const Word word = load<Word>(words + i * sizeof(Word));
    seen |= word;
    ++counts[n_escapes + Words::exponent(word)];
  }
  FloatModel model;
  model.zero_bits = std::min(std::countr_zero(seen), Words::mantissa_bits);
  model.table_log = std::clamp(int(std::bit_width(n)) - 3, min_table_log, max_table_log);
  const auto used = counts.size() - std::size_t(std::ranges::count(counts, std::uint64_t(0)));
  while (used > std::size_t(1) << model.table_log)
    if (++model.table_log > max_table_log) return {};
  model.table = normalized(counts, model.table_log, false);
  return model;
}

// About how many bytes prelude and blocks take.
inline std::uint64_t estimated_float_bytes(const FloatModel& model, std::size_t n, int raw_bits,
                                           std::size_t prelude_bytes) {
  std::uint64_t state_bits = 0;  // of 2^table_log words that are spread as the table is
  for (const std::uint64_t frequency : model.table)
    if (frequency)
      state_bits += frequency * ((std::uint64_t(model.table_log) << 16) - log2_fixed(frequency));
  const std::uint64_t coded = (state_bits >> model.table_log) * n >> 16;
  return prelude_bytes + (coded + n * std::uint64_t(raw_bits) + 7) / 8;
}

// The table made ready both ways: immutable, shared by all threads.
template <class Words>
class FloatTable {
 public:
  using Word = typename Words::Word;

  FloatTable(const Kernels& kernels, const FloatModel& model) : kernels_(kernels), model_(model) {
    append_entries(entries_, model.table, model.table_log,
                   entries_of(n_float_symbols(Words::exponent_bits), symbol_at()));
  }

  bool decode(const std::uint8_t* stream, std::size_t size, std::uint8_t* out,
              std::size_t n) const {
    Sequences in(kernels_, entries_, model_.table_log, stream, size);
    const Context contexts[chunk] = {};
    alignas(64) std::uint8_t numbers[chunk * sizeof(Word)];
    for (std::size_t first = 0; first < n && in.is_sound(); first += chunk) {
      const std::size_t part = std::min(chunk, n - first);
      in.read<Word>(contexts, part, numbers);
      kernels_.join[kind_of<Words>](numbers, part, model_.zero_bits, out + first * sizeof(Word));
    }
    return in.is_finished();
  }

  auto symbol_at() const {
    const int raw = float_raw_bits<Words>(model_.zero_bits);
    return [raw](int symbol) { return float_symbol(symbol, raw); };
  }

 private:
  const Kernels& kernels_;
  FloatModel model_;
  std::vector<Entry> entries_;
};

template <class Words>
class FloatRows {
 public:
  using Word = typename Words::Word;

  FloatRows(const Kernels& kernels, const FloatTable<Words>& table, const FloatModel& model)
      : kernels_(kernels), model_(model) {
    append_rows(rows_, next_states_, model.table, model.table_log, 1u << Words::exponent_bits,
                [](unsigned place) { return int(place) + n_escapes; }, table.symbol_at());
  }
  int table_log() const { return model_.table_log; }
  void find_places(const Context*, const Word* numbers, std::size_t n,
                   std::uint16_t* places) const {
    const int raw = float_raw_bits<Words>(model_.zero_bits);
    for (std::size_t i = 0; i < n; ++i) places[i] = std::uint16_t(numbers[i] >> raw);
  }
  const Row* rows() const { return rows_.data(); }
  const std::uint32_t* next_states() const { return next_states_.data(); }

  // The stream of one block; empty where the words are not among those that were planned.
  std::vector<std::uint8_t> encode(const std::uint8_t* words, std::size_t n) const {
    std::vector<Word> numbers(n);
    Word seen = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const Word word = load<Word>(words + i * sizeof(Word));
      seen |= word;
      numbers[i] = Word(Words::split(word) >> model_.zero_bits);
    }
    if (std::countr_zero(seen) < model_.zero_bits) return {};  // not the words of the plan
    std::vector<std::uint8_t> out(stream_bound(n, Words::word_bits));
    StreamWriter<FloatRows> writer(kernels_, *this, out.data());
    writer.write(Context(0), numbers.data(), n);
    out.resize(writer.finish());
    return out;
  }

 private:
  const Kernels& kernels_;
  FloatModel model_;
  std::vector<Row> rows_;
  std::vector<std::uint32_t> next_states_;
};

}  // namespace deltahub
