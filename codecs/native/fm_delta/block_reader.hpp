// Decoding of fm_delta blocks: one block, or two blocks chunk by chunk in alternation.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/prefetch_block.hpp"
#include "coder/decoded_block.hpp"
#include "coder/sequences.hpp"
#include "fm_delta/decode.hpp"

namespace deltahub {

// A block's stream and its buffers. base, out: the words of the block; stream: `size` bytes that do
// not overlap `out`.
struct CodedBlock {
  const std::uint8_t* stream;
  std::size_t size;
  const std::uint8_t* base;
  std::uint8_t* out;
  std::uint64_t seed;  // of the checksum of the decoded words
  NextBlock next = {};
};

// The state of decoding one block. No stream, however wrong, makes it access memory outside the
// buffers of the block.
template <class Words>
class BlockReader {
 public:
  using Word = typename Words::Word;

  BlockReader(const FrameModel<Words>& frame, const BlockShape& shape, const CodedBlock& block)
      : frame_(frame),
        shape_(shape),
        block_(block),
        words_(frame.kernels(), block.out, shape.rows * shape.columns * sizeof(Word), block.seed),
        in_(frame.sequences(block.stream, block.size)),
        is_sound_(frame.read_rows(in_, shape.rows, side_info_)) {}

  bool is_sound() const { return is_sound_ && in_.is_sound(); }
  DecodedBlock finish() { return words_.finish(is_sound_ && in_.is_finished()); }
  std::size_t count() const { return shape_.rows * shape_.columns; }

  // The three steps of decoding words [first, first + n), n <= chunk: call predict, read and apply
  // in this order, while the stream is sound.
  void predict(std::size_t first, std::size_t n) {
    block_.next.prefetch_share(first, first + n, count());
    predicted_ = frame_.predict(shape_, side_info_, first, n, block_.base + first * sizeof(Word),
                                contexts_, space_);
  }
  void read(std::size_t first, std::size_t n) {
    in_.template read<Word>(contexts_, n, deltas_, ahead(first + n));
  }
  static void read_two(BlockReader& a, BlockReader& b, std::size_t first, std::size_t n) {
    Sequences::read_two<Word>(a.in_, b.in_, a.contexts_, b.contexts_, n, a.deltas_, b.deltas_,
                              a.ahead(first + n), b.ahead(first + n));
  }
  void apply(std::size_t first, std::size_t n) {
    frame_.apply(predicted_, deltas_, n, words_.at(first * sizeof(Word)));
    words_.add((first + n) * sizeof(Word));
  }

 private:
  // The memory to prefetch: output and base from word `next` on.
  PrefetchTargets ahead(std::size_t next) const {
    return {std::uintptr_t(block_.out) + next * sizeof(Word),
            std::uintptr_t(block_.base) + next * sizeof(Word)};
  }

  const FrameModel<Words>& frame_;
  BlockShape shape_;
  CodedBlock block_;
  DecodedWords words_;
  Sequences in_;
  RowSideInfo side_info_;
  bool is_sound_;
  const std::uint8_t* predicted_ = nullptr;
  Context contexts_[chunk];
  alignas(64) std::uint8_t deltas_[chunk * sizeof(Word)];
  Workspace<Words> space_;
};

// Decodes the words of a block from word `first` on.
template <class Words>
DecodedBlock finish_block(BlockReader<Words>& reader, std::size_t first) {
  for (; first < reader.count() && reader.is_sound(); first += chunk) {
    const std::size_t n = std::min(chunk, reader.count() - first);
    reader.predict(first, n);
    reader.read(first, n);
    reader.apply(first, n);
  }
  return reader.finish();
}

template <class Words>
DecodedBlock decode_block(const FrameModel<Words>& frame, const BlockShape& shape,
                          const CodedBlock& block) {
  BlockReader<Words> reader(frame, shape, block);
  return finish_block(reader, 0);
}

// Decodes two blocks. As long as both have whole chunks, the two streams are decoded interleaved,
// because that is faster.
template <class Words>
std::array<DecodedBlock, 2> decode_two_blocks(const FrameModel<Words>& frame,
                                              const std::array<BlockShape, 2>& shapes,
                                              const std::array<CodedBlock, 2>& blocks) {
  BlockReader<Words> a(frame, shapes[0], blocks[0]), b(frame, shapes[1], blocks[1]);
  const std::size_t n_both = std::min(a.count(), b.count());
  std::size_t first = 0;
  for (; first + chunk <= n_both && a.is_sound() && b.is_sound(); first += chunk) {
    a.predict(first, chunk);
    b.predict(first, chunk);
    BlockReader<Words>::read_two(a, b, first, chunk);
    a.apply(first, chunk);
    b.apply(first, chunk);
  }
  const DecodedBlock is_a = finish_block(a, first);
  return {is_a, finish_block(b, first)};
}

}  // namespace deltahub
