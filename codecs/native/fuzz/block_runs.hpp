// Fuzzer of block ranges: decoding many blocks in one call must give the same as decoding each
// block in buffers of its own, with every set of kernels and for any claimed modes, lengths and
// sizes.
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

constexpr std::size_t most_blocks = 6, most_words_of_range = 4096;

// The claims of a caller about a range of blocks. Its buffers need not match them.
struct ClaimedRange {
  std::vector<std::uint8_t> modes;
  std::vector<std::size_t> lengths, sizes;
  std::vector<std::uint64_t> checksums;
  std::size_t first = 0;
  std::size_t n_payload = 0, n_base = 0, n_out = 0;
  bool has_base = false;

  BlockRange range(std::size_t threads) const {
    return {modes, lengths, sizes, checksums, first, threads};
  }

  // The rules of frames/decode_blocks.hpp, with sums that cannot overflow.
  bool fits() const {
    if (lengths.size() != modes.size() || sizes.size() != modes.size() ||
        checksums.size() != modes.size())
      return false;
    for (std::size_t i = 0; i < modes.size(); ++i) {
      const bool is_valid = modes[i] == 0   ? has_base && lengths[i] == 0
                            : modes[i] == 1 ? lengths[i] == sizes[i]
                                            : modes[i] == 2;
      if (!is_valid || sizes[i] == 0) return false;
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

// One of the decoders. decode_all: decodes a range. check(index, size): std::invalid_argument if
// the frame has no such coded block. decode_one(index, block): decodes one block; whether it is
// accepted.
struct RangeDecoder {
  std::function<DecodeResult(const BlockRange&, View payload, View base,
                             std::span<std::uint8_t> out)>
      decode_all;
  std::function<void(std::size_t, std::size_t)> check;
  std::function<bool(std::size_t, const Block&)> decode_one;
};

// The outcome of decoding a range: refused with std::invalid_argument, or the result and the bytes
// of the intact blocks.
struct Outcome {
  bool is_refused;
  DecodeResult result;
  Bytes bytes;
  bool operator==(const Outcome&) const = default;
};

template <class Decode>
Outcome outcome_of(const ClaimedRange& claimed, Decode&& decode) {
  Exact out(claimed.n_out);
  try {
    const DecodeResult result = decode(std::span(out.data.get(), claimed.n_out));
    std::size_t n_bytes = 0;
    for (std::size_t i = 0; i < result.n_intact; ++i) n_bytes += claimed.sizes[i];
    return {false, result, {out.data.get(), out.data.get() + n_bytes}};
  } catch (const std::invalid_argument&) {
    return {true, {}, {}};
  }
}

// Decodes one block in buffers of its own. Its checksum is not checked.
Fault decode_one_block(const RangeDecoder& decoder, const ClaimedRange& claimed, std::size_t i,
                       View stored, View base, std::span<std::uint8_t> decoded) {
  const Exact own_base(base);
  Exact out(claimed.sizes[i]);
  if (claimed.modes[i] == 0) std::ranges::copy(own_base.view(), out.data.get());
  if (claimed.modes[i] == 1) std::ranges::copy(stored, out.data.get());
  if (claimed.modes[i] == 2) {
    if (stored.size() <= guard_bytes) return Fault::guard;
    const Exact stream(stored.subspan(guard_bytes));
    const auto sum = checksum_of(portable_kernels, stream.data.get(), stream.size, 0);
    if (std::uint32_t(sum) != load<std::uint32_t>(stored.data())) return Fault::guard;
    const Block block{stream.data.get(), stream.size, own_base.data.get(), out.data.get(),
                      out.size};
    if (!decoder.decode_one(claimed.first + i, block)) return Fault::stream;
  }
  std::ranges::copy(out.view(), decoded.data());
  return Fault::none;
}

// Sets the claimed checksums to the right ones, with one bit flipped for block `wrong`, if there is
// one.
DecodeResult decode_one_by_one(const RangeDecoder& decoder, ClaimedRange& claimed,
                               std::size_t wrong, View payload, View base,
                               std::span<std::uint8_t> all) {
  require(claimed.fits(), "a range that does not match its buffers");
  for (std::size_t i = 0; i < claimed.modes.size(); ++i)
    if (claimed.modes[i] == 2) decoder.check(claimed.first + i, claimed.sizes[i]);
  DecodeResult result{claimed.modes.size(), Fault::none};
  for (std::size_t i = 0; i < claimed.modes.size() && result.fault == Fault::none; ++i) {
    const std::size_t n = claimed.sizes[i];
    const Fault fault = decode_one_block(decoder, claimed, i, payload.first(claimed.lengths[i]),
                                         claimed.has_base ? base.first(n) : View(), all.first(n));
    claimed.checksums[i] = checksum_of(portable_kernels, all.data(), n, claimed.first + i);
    if (i == wrong) claimed.checksums[i] ^= std::uint64_t(1) << n % 64;
    if (fault != Fault::none || i == wrong)
      result = {i, fault != Fault::none ? fault : Fault::other_bytes};
    payload = payload.subspan(claimed.lengths[i]), all = all.subspan(n);
    if (claimed.has_base) base = base.subspan(n);
  }
  return result;
}

// Makes one of the claims false, as the input says.
void corrupt(ClaimedRange& claimed, Input& in) {
  const std::size_t choice = in.number(10), place = in.number(most_blocks);
  const std::size_t value = in.number(65536), amount = value << in.number(64);
  const auto move = [&](std::vector<std::size_t>& numbers) {  // keeps the sum modulo 2^64
    if (numbers.empty()) return;
    numbers[place % numbers.size()] += amount;
    numbers[(place + 1) % numbers.size()] -= amount;
  };
  switch (choice) {
    case 1:
      move(claimed.lengths);
      break;
    case 2:
      move(claimed.sizes);
      break;
    case 3:
      claimed.modes.resize(place);
      break;
    case 4:
      claimed.lengths.resize(place);
      break;
    case 5:
      claimed.sizes.resize(place);
      break;
    case 6:
      claimed.n_payload = value;
      break;
    case 7:
      claimed.n_base = claimed.has_base ? value : 0;
      break;
    case 8:
      claimed.n_out = value;
      break;
    case 9:
      claimed.checksums.resize(place);
      break;
    default: break;
  }
}

RangeDecoder delta_decoder(int kind, View prelude, int version, std::size_t rows,
                           std::size_t columns, std::size_t parts) {
  const std::shared_ptr<DeltaDecoder> decoder =
      make_delta_decoder(kind, prelude, rows, columns, version);
  const auto shape_of = [=](std::size_t index, std::size_t size) {
    require(parts >= 1 && parts <= columns, "a row has empty parts");
    const std::size_t n_words = size / decoder->word_bytes;
    const std::size_t part_width = columns / parts + (columns % parts != 0);
    return parts == 1 ? BlockShape{n_words / columns, columns, 0}
                      : BlockShape{1, n_words, index % parts * part_width};
  };
  return {[=](const BlockRange& range, View payload, View base, std::span<std::uint8_t> out) {
            return decode_range(*decoder, parts, range, payload, base, out);
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

RangeDecoder float_decoder(int kind, View prelude) {
  const std::shared_ptr<FloatDecoder> decoder = make_float_decoder(kind, prelude);
  return {[=](const BlockRange& range, View payload, View, std::span<std::uint8_t> out) {
            return decode_range(*decoder, range, payload, out);
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
  ClaimedRange claimed;
  // Two of the four choices are the versions of fm_delta, the others neuzip_lossless.
  constexpr std::size_t deltas = 0, strided_deltas = 3;
  const std::size_t choice = in.number(4);
  claimed.has_base = choice == deltas || choice == strided_deltas;
  const int kind = int(in.number(std::size_t(WordKind::int64) + 1));
  const std::size_t word_bytes =
      with_words(WordKind(kind), []<class Words>(Words) { return sizeof(typename Words::Word); });
  const std::size_t rows = in.number(most_rows) + 1, columns = in.number(most_columns) + 1;
  const std::size_t parts = in.number(columns + 2);
  // Block indices have 32 bits; that larger sums overflow does no harm.
  const std::size_t index = in.number(65536);
  claimed.first = index == 65535 ? std::size_t(0) - 2 : index;
  const std::size_t prelude_bytes = in.number(65536), base_bytes = in.number(65536);

  struct Stored {
    std::size_t length, wrong_bit;
  };
  std::vector<Stored> blocks(in.number(most_blocks + 1));
  for (Stored& block : blocks) {
    claimed.modes.push_back(std::uint8_t(in.number(4)));
    block.length = in.number(65536);
    claimed.sizes.push_back(in.number(most_words_of_range + 1) * word_bytes);
    block.wrong_bit = in.number(33);
    claimed.n_out += claimed.sizes.back();
  }
  claimed.n_base = claimed.has_base ? claimed.n_out : 0;
  claimed.checksums.resize(blocks.size());
  ClaimedRange valid = std::move(claimed);
  Input corruption(in.bytes(10));
  const Exact prelude(in.bytes(prelude_bytes));
  const View some_base = in.bytes(base_bytes);

  Bytes payload;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const View taken = in.bytes(valid.modes[i] == 0 ? 0 : blocks[i].length);
    Bytes stored(taken.begin(), taken.end());
    if (valid.modes[i] == 1) stored.resize(valid.sizes[i]);
    if (valid.modes[i] == 2) {
      auto sum = checksum_of(portable_kernels, stored.data(), stored.size(), 0);
      if (blocks[i].wrong_bit > 0) sum ^= std::uint64_t(1) << (blocks[i].wrong_bit - 1);
      stored.insert(stored.begin(), guard_bytes, 0);
      store(stored.data(), std::uint32_t(sum));
    }
    valid.lengths.push_back(stored.size());
    payload.insert(payload.end(), stored.begin(), stored.end());
  }
  valid.n_payload = payload.size();
  claimed = valid;
  corrupt(claimed, corruption);
  payload.resize(claimed.n_payload);
  const Exact exact_payload(payload);
  Exact base(claimed.n_base);
  for (std::size_t i = 0; i < base.size; ++i)
    base.data[i] = some_base.empty() ? 0 : some_base[i % some_base.size()];

  const std::size_t wrong = corruption.number(2 * most_blocks);
  std::optional<Outcome> expected;
  for (const Kernels* kernels : supported_kernels()) {
    chosen_kernels() = kernels;
    RangeDecoder decoder;
    try {
      decoder = claimed.has_base
                    ? delta_decoder(kind, prelude.view(),
                                    choice == deltas ? first_delta_version : strided_delta_version,
                                    rows, columns, parts)
                    : float_decoder(kind, prelude.view());
    } catch (const std::invalid_argument&) {
      break;  // the other fuzzers check which preludes are accepted
    }
    if (!expected)
      expected = outcome_of(claimed, [&](std::span<std::uint8_t> out) {
        return decode_one_by_one(decoder, claimed, wrong, exact_payload.view(), base.view(), out);
      });
    for (const std::size_t threads : {1, 3}) {
      const Outcome outcome = outcome_of(claimed, [&](std::span<std::uint8_t> out) {
        return decoder.decode_all(claimed.range(threads), exact_payload.view(), base.view(), out);
      });
      if (outcome != *expected)
        fail("a range decodes to something else than its blocks one by one");
    }
  }
  // A range without coded blocks decodes without a decoder.
  if (expected && std::ranges::find(claimed.modes, 2) == claimed.modes.end() &&
      claimed.n_base == (claimed.has_base ? claimed.n_out : 0)) {
    const Outcome outcome = outcome_of(claimed, [&](std::span<std::uint8_t> out) {
      return decode_range(claimed.range(1), exact_payload.view(), base.view(), out);
    });
    if (outcome != *expected) fail("a range without coded blocks needs a decoder");
  }
}

}  // namespace
}  // namespace deltahub
