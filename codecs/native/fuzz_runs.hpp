// The fuzzer of runs: many blocks in one call make what the blocks make one by one, each in buffers
// of its own; with every set of kernels, and whatever modes, lengths and sizes are told.
#pragma once

#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "block_run.hpp"
#include "fuzz_input.hpp"

namespace deltahub {
namespace {

constexpr std::size_t most_blocks = 6, most_words_of_run = 4096;

// A run as it is told, which its buffers need not fit.
struct ToldRun {
  std::vector<std::uint8_t> modes;
  std::vector<std::size_t> lengths, sizes;
  std::size_t n_payload = 0, n_base = 0, n_out = 0;
  bool has_base = false;

  BlockRun run() const { return {modes, lengths, sizes}; }

  // As block_run.hpp checks it, by sums that cannot wrap.
  bool fits() const {
    if (lengths.size() != modes.size() || sizes.size() != modes.size()) return false;
    for (std::size_t i = 0; i < modes.size(); ++i) {
      const bool is_met = modes[i] == 0   ? has_base && lengths[i] == 0
                          : modes[i] == 1 ? lengths[i] == sizes[i]
                                          : modes[i] == 2 && lengths[i] >= 245;
      if (!is_met || sizes[i] == 0) return false;
    }
    return sum(lengths) == n_payload && sum(sizes) == n_out && n_base == (has_base ? n_out : 0);
  }
  bool may_be_checked() const {
    return std::ranges::all_of(sizes, [](std::size_t n) { return n > 240; }) && sum(sizes) == n_out;
  }

 private:
  __extension__ using Wide = unsigned __int128;
  static Wide sum(const std::vector<std::size_t>& numbers) {
    Wide total = 0;
    for (const std::size_t number : numbers) total += number;
    return total;
  }
};

// One of the decoders. block(i, block): one coded block of the run, alone.
struct RunDecoder {
  std::function<bool(const BlockRun&, View payload, View base, std::span<std::uint8_t> out)> run;
  std::function<bool(std::size_t, const Block&)> block;
};

// What came of a run: std::invalid_argument, a damaged block, or these bytes.
struct Outcome {
  enum { refused, damaged, decoded } what;
  Bytes bytes;
  bool operator==(const Outcome&) const = default;
};

template <class Decode>
Outcome outcome_of(std::size_t n_out, Decode&& decode) {
  Exact out(n_out);
  try {
    if (!decode(std::span(out.data.get(), n_out))) return {Outcome::damaged, {}};
    return {Outcome::decoded, {out.view().begin(), out.view().end()}};
  } catch (const std::invalid_argument&) {
    return {Outcome::refused, {}};
  }
}

bool decode_one_by_one(const RunDecoder& decoder, const ToldRun& told, View payload, View base,
                       std::span<std::uint8_t> all) {
  require(told.fits(), "a run that does not fit its buffers");
  for (std::size_t i = 0; i < told.modes.size(); ++i) {
    const Exact stored(payload.first(told.lengths[i]));
    const Exact near(told.has_base ? base.first(told.sizes[i]) : View());
    Exact out(told.sizes[i]);
    if (told.modes[i] == 0) std::ranges::copy(near.view(), out.data.get());
    if (told.modes[i] == 1) std::ranges::copy(stored.view(), out.data.get());
    if (told.modes[i] == 2) {
      const Exact stream(stored.view().subspan(4));
      const auto sum = portable_kernels.checksum(stream.data.get(), stream.size, 0);
      if (std::uint32_t(sum) != load<std::uint32_t>(stored.data.get())) return false;
      const Block block{stream.data.get(), stream.size, near.data.get(), out.data.get(), out.size};
      if (!decoder.block(i, block)) return false;
    }
    std::ranges::copy(out.view(), all.data());
    payload = payload.subspan(stored.size), all = all.subspan(out.size);
    if (told.has_base) base = base.subspan(out.size);
  }
  return true;
}

// One checksum of the run's decoded bytes is another's.
void compare_checksums(const ToldRun& told, std::size_t first, std::size_t wrong) {
  Exact out(told.n_out);
  for (std::size_t i = 0; i < out.size; ++i) out.data[i] = std::uint8_t(i * i >> 5);
  std::vector<std::uint64_t> sums;
  const bool is_checked = told.may_be_checked();
  if (is_checked) {
    const std::uint8_t* at = out.data.get();
    for (const std::size_t size : told.sizes) {
      sums.push_back(portable_kernels.checksum(at, size, first + sums.size()));
      at += size;
    }
  }
  sums.resize(told.sizes.size());
  if (wrong < sums.size()) sums[wrong] ^= std::uint64_t(1) << wrong % 64;
  for (const Kernels* kernels : supported_kernels()) {
    chosen_kernels() = kernels;
    try {
      const std::size_t n = n_intact(first, told.sizes, sums, out.view());
      if (!is_checked) fail("blocks that are no part of the bytes are checked");
      if (n != std::min(wrong, sums.size())) fail("another block is the first damaged one");
    } catch (const std::invalid_argument&) {
      if (is_checked) fail("blocks that can be checked are refused");
    }
  }
}

// What an input may tell that is not so.
void lie(ToldRun& told, Input& in) {
  const std::size_t what = in.number(10), place = in.number(most_blocks);
  const std::size_t by = in.number(65536), amount = by << in.number(64);
  const auto move = [&](std::vector<std::size_t>& numbers) {  // their sum modulo 2^64 stays
    if (numbers.empty()) return;
    numbers[place % numbers.size()] += amount;
    numbers[(place + 1) % numbers.size()] -= amount;
  };
  switch (what) {
    case 1: move(told.lengths); break;
    case 2: move(told.sizes); break;
    case 3: told.modes.resize(place); break;
    case 4: told.lengths.resize(place); break;
    case 5: told.sizes.resize(place); break;
    case 6: told.n_payload = by; break;
    case 7: told.n_base = told.has_base ? by : 0; break;
    case 8: told.n_out = by; break;
    default: break;
  }
}

RunDecoder delta_runs(int kind, View prelude, std::size_t rows, std::size_t columns,
                      std::size_t parts, std::size_t first) {
  const std::shared_ptr<DeltaDecoder> decoder = parsed_deltas(kind, prelude, rows, columns);
  return {
      [=](const BlockRun& run, View payload, View base, std::span<std::uint8_t> out) {
        return decode_run(*decoder, first, parts, run, payload, base, out);
      },
      [=](std::size_t i, const Block& block) {
        require(parts >= 1 && parts <= columns, "a row has empty parts");
        const std::size_t n_words = block.size / decoder->word_bytes;
        const std::size_t part_width = columns / parts + (columns % parts != 0);
        const std::size_t left = (first + i) % parts * part_width;
        const BlockShape shape = parts == 1 ? BlockShape{n_words / columns, columns, 0}
                                            : BlockShape{1, n_words, left};
        decoder->check_block(block.size, block.size, 0, shape.first_column, shape.rows,
                             shape.columns);
        return decoder->decode(block.stored, block.length, block.base, block.out, shape);
      }};
}

RunDecoder float_runs(int kind, View prelude, int version) {
  const std::shared_ptr<FloatDecoder> decoder = parsed_floats(kind, prelude, version);
  return {[=](const BlockRun& run, View payload, View, std::span<std::uint8_t> out) {
            return decode_run(*decoder, run, payload, out);
          },
          [=](std::size_t, const Block& block) {
            return decoder->decode({block.stored, block.length}, block.out, block.size);
          }};
}

[[maybe_unused]] void runs(View bytes) {
  Input in(bytes);
  ToldRun told;
  const int version = int(in.number(3));  // of neuzip_lossless; 0: fm_delta
  told.has_base = version == 0;
  const int kind = int(in.number(std::size_t(WordKind::int64) + 1));
  const std::size_t word_bytes =
      with_words(WordKind(kind), []<class Words>(Words) { return sizeof(typename Words::Word); });
  const std::size_t rows = in.number(most_rows) + 1, columns = in.number(most_columns) + 1;
  const std::size_t parts = in.number(columns + 2);
  // Indices of blocks have 32 bits; that such sums wrap is no fault of memory.
  const std::size_t near = in.number(65536), first = near == 65535 ? std::size_t(0) - 2 : near;
  const std::size_t prelude_bytes = in.number(65536), base_bytes = in.number(65536);

  struct Stored {
    std::size_t length, wrong_bit;
  };
  std::vector<Stored> blocks(in.number(most_blocks + 1));
  for (Stored& block : blocks) {
    told.modes.push_back(std::uint8_t(in.number(4)));
    block.length = in.number(65536);
    told.sizes.push_back(in.number(most_words_of_run + 1) * word_bytes);
    block.wrong_bit = in.number(33);
    told.n_out += told.sizes.back();
  }
  told.n_base = told.has_base ? told.n_out : 0;
  ToldRun honest = std::move(told);
  Input lies(in.bytes(10));
  const Exact prelude(in.bytes(prelude_bytes));
  const View some_base = in.bytes(base_bytes);

  Bytes payload;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const View taken = in.bytes(honest.modes[i] == 0 ? 0 : blocks[i].length);
    Bytes stored(taken.begin(), taken.end());
    if (honest.modes[i] == 1) stored.resize(honest.sizes[i]);
    if (honest.modes[i] == 2) {
      const bool is_long = stored.size() > least_checked;  // others are refused unread
      auto sum = is_long ? portable_kernels.checksum(stored.data(), stored.size(), 0) : 0;
      if (blocks[i].wrong_bit > 0) sum ^= std::uint64_t(1) << (blocks[i].wrong_bit - 1);
      stored.insert(stored.begin(), guard_bytes, 0);
      store(stored.data(), std::uint32_t(sum));
    }
    honest.lengths.push_back(stored.size());
    payload.insert(payload.end(), stored.begin(), stored.end());
  }
  honest.n_payload = payload.size();
  told = honest;
  lie(told, lies);
  payload.resize(told.n_payload);
  const Exact given(payload);
  Exact base(told.n_base);
  for (std::size_t i = 0; i < base.size; ++i)
    base.data[i] = some_base.empty() ? 0 : some_base[i % some_base.size()];

  std::optional<Outcome> expected;
  for (const Kernels* kernels : supported_kernels()) {
    chosen_kernels() = kernels;
    RunDecoder decoder;
    try {
      decoder = told.has_base ? delta_runs(kind, prelude.view(), rows, columns, parts, first)
                              : float_runs(kind, prelude.view(), version);
    } catch (const std::invalid_argument&) {
      break;  // the other fuzzers compare what is accepted
    }
    if (!expected)
      expected = outcome_of(told.n_out, [&](std::span<std::uint8_t> out) {
        return decode_one_by_one(decoder, told, given.view(), base.view(), out);
      });
    const Outcome found = outcome_of(told.n_out, [&](std::span<std::uint8_t> out) {
      return decoder.run(told.run(), given.view(), base.view(), out);
    });
    if (found != *expected) fail("a run makes something else than its blocks one by one");
  }
  compare_checksums(told, first, lies.number(2 * most_blocks));
}

}  // namespace
}  // namespace deltahub
