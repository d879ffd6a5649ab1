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

#include "frames/decode_blocks.hpp"
#include "fuzz/input.hpp"

namespace deltahub {
namespace {

constexpr std::size_t most_blocks = 6, most_words_of_run = 4096;

// A run as it is told, which its buffers need not fit.
struct ToldRun {
  std::vector<std::uint8_t> modes;
  std::vector<std::size_t> lengths, sizes;
  std::vector<std::uint64_t> checksums;
  std::size_t first = 0;
  std::size_t n_payload = 0, n_base = 0, n_out = 0;
  bool has_base = false;

  BlockRun run(std::size_t threads) const {
    return {modes, lengths, sizes, checksums, first, threads};
  }

  // As frames/decode_blocks.hpp checks it, by sums that cannot wrap.
  bool fits() const {
    if (lengths.size() != modes.size() || sizes.size() != modes.size() ||
        checksums.size() != modes.size())
      return false;
    for (std::size_t i = 0; i < modes.size(); ++i) {
      const bool is_met = modes[i] == 0   ? has_base && lengths[i] == 0
                          : modes[i] == 1 ? lengths[i] == sizes[i]
                                          : modes[i] == 2;
      if (!is_met || sizes[i] == 0) return false;
    }
    return sum(lengths) == n_payload && sum(sizes) == n_out && n_base == (has_base ? n_out : 0);
  }

 private:
  __extension__ using Wide = unsigned __int128;
  static Wide sum(const std::vector<std::size_t>& numbers) {
    Wide total = 0;
    for (const std::size_t number : numbers) total += number;
    return total;
  }
};

// One of the decoders. check(index, size): std::invalid_argument where the frame has no such coded
// block; block(index, block): one that it has, alone.
struct RunDecoder {
  std::function<Found(const BlockRun&, View payload, View base, std::span<std::uint8_t> out)> run;
  std::function<void(std::size_t, std::size_t)> check;
  std::function<bool(std::size_t, const Block&)> block;
};

// What came of a run: std::invalid_argument, or so many blocks, what is wrong with the next one, and
// their bytes.
struct Outcome {
  bool is_refused;
  Found found;
  Bytes bytes;
  bool operator==(const Outcome&) const = default;
};

template <class Decode>
Outcome outcome_of(const ToldRun& told, Decode&& decode) {
  Exact out(told.n_out);
  try {
    const Found found = decode(std::span(out.data.get(), told.n_out));
    std::size_t n_bytes = 0;
    for (std::size_t i = 0; i < found.n_intact; ++i) n_bytes += told.sizes[i];
    return {false, found, {out.data.get(), out.data.get() + n_bytes}};
  } catch (const std::invalid_argument&) {
    return {true, {}, {}};
  }
}

// What a block by itself decodes to; its checksum is looked at by others.
Fault decode_block_alone(const RunDecoder& decoder, const ToldRun& told, std::size_t i, View stored,
                         View base, std::span<std::uint8_t> decoded) {
  const Exact near(base);
  Exact out(told.sizes[i]);
  if (told.modes[i] == 0) std::ranges::copy(near.view(), out.data.get());
  if (told.modes[i] == 1) std::ranges::copy(stored, out.data.get());
  if (told.modes[i] == 2) {
    if (stored.size() <= guard_bytes) return Fault::guard;
    const Exact stream(stored.subspan(guard_bytes));
    const auto sum = checksum_of(portable_kernels, stream.data.get(), stream.size, 0);
    if (std::uint32_t(sum) != load<std::uint32_t>(stored.data())) return Fault::guard;
    const Block block{stream.data.get(), stream.size, near.data.get(), out.data.get(), out.size};
    if (!decoder.block(told.first + i, block)) return Fault::stream;
  }
  std::ranges::copy(out.view(), decoded.data());
  return Fault::none;
}

// wrong: the block whose checksum is told with one bit turned over; beyond the last one: none is.
Found decode_one_by_one(const RunDecoder& decoder, ToldRun& told, std::size_t wrong, View payload,
                        View base, std::span<std::uint8_t> all) {
  require(told.fits(), "a run that does not fit its buffers");
  for (std::size_t i = 0; i < told.modes.size(); ++i)
    if (told.modes[i] == 2) decoder.check(told.first + i, told.sizes[i]);
  Found found{told.modes.size(), Fault::none};
  for (std::size_t i = 0; i < told.modes.size() && found.fault == Fault::none; ++i) {
    const std::size_t n = told.sizes[i];
    const Fault fault = decode_block_alone(decoder, told, i, payload.first(told.lengths[i]),
                                           told.has_base ? base.first(n) : View(), all.first(n));
    told.checksums[i] = checksum_of(portable_kernels, all.data(), n, told.first + i);
    if (i == wrong) told.checksums[i] ^= std::uint64_t(1) << n % 64;
    if (fault != Fault::none || i == wrong)
      found = {i, fault != Fault::none ? fault : Fault::other_bytes};
    payload = payload.subspan(told.lengths[i]), all = all.subspan(n);
    if (told.has_base) base = base.subspan(n);
  }
  return found;
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
    case 9: told.checksums.resize(place); break;
    default: break;
  }
}

RunDecoder delta_runs(int kind, View prelude, int version, std::size_t rows, std::size_t columns,
                      std::size_t parts) {
  const std::shared_ptr<DeltaDecoder> decoder =
      parsed_deltas(kind, prelude, rows, columns, version);
  const auto shape_of = [=](std::size_t index, std::size_t size) {
    require(parts >= 1 && parts <= columns, "a row has empty parts");
    const std::size_t n_words = size / decoder->word_bytes;
    const std::size_t part_width = columns / parts + (columns % parts != 0);
    return parts == 1 ? BlockShape{n_words / columns, columns, 0}
                      : BlockShape{1, n_words, index % parts * part_width};
  };
  return {[=](const BlockRun& run, View payload, View base, std::span<std::uint8_t> out) {
            return decode_run(*decoder, parts, run, payload, base, out);
          },
          [=](std::size_t index, std::size_t size) {
            const BlockShape shape = shape_of(index, size);
            decoder->check_block(size, size, 0, shape.first_column, shape.rows, shape.columns);
          },
          [=](std::size_t index, const Block& block) {
            return decoder
                ->decode({block.stored, block.length, block.base, block.out, 0},
                         shape_of(index, block.size))
                .is_sound;
          }};
}

RunDecoder float_runs(int kind, View prelude) {
  const std::shared_ptr<FloatDecoder> decoder = parsed_floats(kind, prelude);
  return {[=](const BlockRun& run, View payload, View, std::span<std::uint8_t> out) {
            return decode_run(*decoder, run, payload, out);
          },
          [=](std::size_t, std::size_t size) {
            require(size % decoder->word_bytes == 0, "not a whole number of words");
          },
          [=](std::size_t, const Block& block) {
            return decoder
                ->decode({{block.stored, block.length}, {block.out, block.size}, 0})
                .is_sound;
          }};
}

[[maybe_unused]] void runs(View bytes) {
  Input in(bytes);
  ToldRun told;
  // Two of four choices are versions of fm_delta, and two are neuzip_lossless.
  constexpr std::size_t deltas = 0, strided_deltas = 3;
  const std::size_t choice = in.number(4);
  told.has_base = choice == deltas || choice == strided_deltas;
  const int kind = int(in.number(std::size_t(WordKind::int64) + 1));
  const std::size_t word_bytes =
      with_words(WordKind(kind), []<class Words>(Words) { return sizeof(typename Words::Word); });
  const std::size_t rows = in.number(most_rows) + 1, columns = in.number(most_columns) + 1;
  const std::size_t parts = in.number(columns + 2);
  // Indices of blocks have 32 bits; that such sums wrap is no fault of memory.
  const std::size_t near = in.number(65536);
  told.first = near == 65535 ? std::size_t(0) - 2 : near;
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
  told.checksums.resize(blocks.size());
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
      auto sum = checksum_of(portable_kernels, stored.data(), stored.size(), 0);
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

  const std::size_t wrong = lies.number(2 * most_blocks);
  std::optional<Outcome> expected;
  for (const Kernels* kernels : supported_kernels()) {
    chosen_kernels() = kernels;
    RunDecoder decoder;
    try {
      decoder = told.has_base ? delta_runs(kind, prelude.view(),
                                           choice == deltas ? first_delta_version
                                                            : strided_delta_version,
                                           rows, columns, parts)
                              : float_runs(kind, prelude.view());
    } catch (const std::invalid_argument&) {
      break;  // the other fuzzers compare what is accepted
    }
    if (!expected)
      expected = outcome_of(told, [&](std::span<std::uint8_t> out) {
        return decode_one_by_one(decoder, told, wrong, given.view(), base.view(), out);
      });
    for (const std::size_t threads : {1, 3}) {
      const Outcome found = outcome_of(told, [&](std::span<std::uint8_t> out) {
        return decoder.run(told.run(threads), given.view(), base.view(), out);
      });
      if (found != *expected) fail("a run makes something else than its blocks one by one");
    }
  }
  // A run of which no block is coded needs no decoder.
  if (expected && std::ranges::find(told.modes, 2) == told.modes.end() &&
      told.n_base == (told.has_base ? told.n_out : 0)) {
    const Outcome found = outcome_of(told, [&](std::span<std::uint8_t> out) {
      return decode_run(told.run(1), given.view(), base.view(), out);
    });
    if (found != *expected) fail("a run without coded blocks needs a decoder");
  }
}

}  // namespace
}  // namespace deltahub
