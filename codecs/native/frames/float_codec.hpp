// neuzip_lossless behind interfaces that do not depend on the kind of floats: tables and blocks.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "kernels/codec_interface.hpp"
#include "kernels/dispatch.hpp"
#include "neuzip/neuzip.hpp"
#include "neuzip/plan.hpp"

namespace deltahub {

struct FloatEncoder {
  virtual ~FloatEncoder() = default;
  // The stream of one block, valid until this thread encodes another block.
  virtual View encode(View words, NextBlock next) const = 0;
  std::vector<std::uint8_t> prelude;
  std::uint64_t estimated_bytes = 0;
  std::size_t word_bytes = 0;
};

struct FloatDecoder {
  virtual ~FloatDecoder() = default;
  virtual DecodedBlock decode(const CodedFloats& block) const = 0;
  // Decodes two blocks, which is faster than one after the other.
  virtual std::array<DecodedBlock, 2> decode_two(
      const std::array<CodedFloats, 2>& blocks) const = 0;
  std::size_t word_bytes = 0;
};

namespace detail {

template <class Words>
std::size_t words_in(std::size_t size) {
  require(size > 0 && size % sizeof(typename Words::Word) == 0, "not a whole number of words");
  return size / sizeof(typename Words::Word);
}

template <class Words>
class FloatEncoderOf final : public FloatEncoder {
 public:
  explicit FloatEncoderOf(const FloatPlan& plan) : table_(*chosen_kernels(), plan.model) {
    prelude = plan.prelude;
    estimated_bytes = plan.estimated_bytes;
    word_bytes = sizeof(typename Words::Word);
  }
  View encode(View words, NextBlock next) const override {
    return table_.encode(words.data(), words_in<Words>(words.size()), next);
  }

 private:
  FloatEncodingTable<Words> table_;
};

template <class Words>
class FloatDecoderOf final : public FloatDecoder {
 public:
  explicit FloatDecoderOf(const FloatModel& model) : table_(*chosen_kernels(), model) {
    word_bytes = sizeof(typename Words::Word);
  }
  DecodedBlock decode(const CodedFloats& block) const override {
    require_words(block);
    return table_.decode(block);
  }
  std::array<DecodedBlock, 2> decode_two(const std::array<CodedFloats, 2>& blocks) const override {
    require_words(blocks[0]);
    require_words(blocks[1]);
    return table_.decode_two(blocks);
  }

 private:
  static void require_words(const CodedFloats& block) { words_in<Words>(block.out.size()); }

  FloatDecodingTable<Words> table_;
};

}  // namespace detail

namespace detail {

// Returns make(words, plan) for the plan of a frame. std::invalid_argument if the words are not
// floats, or have more exponents than a table holds.
template <class Result, class Make>
Result with_float_plan(int kind, View source, Make&& make) {
  return with_words(word_kind(kind), [&]<class Words>(Words words) -> Result {
    if constexpr (Words::exponent_bits == 0) {
      throw std::invalid_argument("integers have no exponents");
    } else {
      const std::size_t n = words_in<Words>(source.size());
      const auto plan = plan_floats<Words>(source.data(), n);
      require(plan.has_value(), "more exponents than a table holds");
      return make(words, *plan);
    }
  });
}

}  // namespace detail

inline std::unique_ptr<FloatEncoder> make_float_encoder(int kind, View source) {
  using Encoder = std::unique_ptr<FloatEncoder>;
  return detail::with_float_plan<Encoder>(
      kind, source, []<class Words>(Words, const FloatPlan& plan) -> Encoder {
        return std::make_unique<detail::FloatEncoderOf<Words>>(plan);
      });
}

// bytes: estimate for prelude and blocks. lower_bound: lower bound for the blocks.
struct FloatEstimate {
  std::uint64_t bytes, lower_bound;
};

inline FloatEstimate estimate_float_bytes(int kind, View source) {
  return detail::with_float_plan<FloatEstimate>(kind, source,
                                                [](auto, const FloatPlan& plan) -> FloatEstimate {
                                                  return {plan.estimated_bytes, plan.lower_bound};
                                                });
}

// std::invalid_argument if no encoder writes such a prelude.
inline std::unique_ptr<FloatDecoder> make_float_decoder(int kind, View prelude) {
  return with_words(word_kind(kind), [&]<class Words>(Words) -> std::unique_ptr<FloatDecoder> {
    if constexpr (Words::exponent_bits == 0) {
      throw std::invalid_argument("integers have no exponents");
    } else {
      const auto model = parse_float_prelude<Words>(prelude.data(), prelude.size());
      require(model.has_value(), "no encoder writes such a prelude");
      return std::make_unique<detail::FloatDecoderOf<Words>>(*model);
    }
  });
}

}  // namespace deltahub
