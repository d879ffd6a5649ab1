// The Python face of the kernels: checks sizes, owns buffers, drops the GIL, raises.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstring>
#include <memory>
#include <vector>

#include "decode.hpp"
#include "encode.hpp"
#include "model.hpp"
#include "planner.hpp"
#include "words.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace deltahub {
namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WritableBytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

WordKind word_kind(int number) {
  if (number < 0 || number > int(WordKind::int64)) throw nb::value_error("no such kind of words");
  return WordKind(number);
}

// Type-erased, so that Python sees one class for all kinds of words.
struct AnyEncoder {
  virtual ~AnyEncoder() = default;
  virtual std::size_t word_bytes() const = 0;
  virtual std::size_t bound_bytes(std::size_t n) const = 0;
  virtual std::size_t encode(const std::uint8_t* source, const std::uint8_t* base, std::size_t n,
                             std::uint8_t* out) const = 0;
};

template <class Words>
struct EncoderOf final : AnyEncoder {
  explicit EncoderOf(const Model& model) : kernel(model) {}
  std::size_t word_bytes() const override { return sizeof(typename Words::Word); }
  std::size_t bound_bytes(std::size_t n) const override { return kernel.bound_bytes(n); }
  std::size_t encode(const std::uint8_t* source, const std::uint8_t* base, std::size_t n,
                     std::uint8_t* out) const override {
    return kernel.encode(source, base, n, out);
  }
  Encoder<Words> kernel;
};

struct AnyDecoder {
  virtual ~AnyDecoder() = default;
  virtual std::size_t word_bytes() const = 0;
  virtual bool decode(const std::uint8_t* stream, std::size_t size, const std::uint8_t* base,
                      std::uint8_t* out, std::size_t n) const = 0;
};

template <class Words>
struct DecoderOf final : AnyDecoder {
  explicit DecoderOf(const Model& model) : kernel(model) {}
  std::size_t word_bytes() const override { return sizeof(typename Words::Word); }
  bool decode(const std::uint8_t* stream, std::size_t size, const std::uint8_t* base,
              std::uint8_t* out, std::size_t n) const override {
    return kernel.decode(stream, size, base, out, n);
  }
  Decoder<Words> kernel;
};

void require_words(std::size_t size, std::size_t other, std::size_t word_bytes) {
  if (size == 0 || size != other || size % word_bytes != 0)
    throw nb::value_error("source and base must be the same, whole, positive number of words");
}

class FmDeltaEncoder {
 public:
  FmDeltaEncoder(int kind, const Bytes& source, const Bytes& base) {
    nb::gil_scoped_release unlocked;
    with_words(word_kind(kind), [&]<class Words>(Words) {
      constexpr std::size_t word_bytes = sizeof(typename Words::Word);
      require_words(source.size(), base.size(), word_bytes);
      const Plan plan = plan_model<Words>(source.data(), base.data(), source.size() / word_bytes);
      estimated_bytes_ = plan.estimated_bytes;
      prelude_ = write_prelude(plan.model, Words::key_bits);
      kernel_ = std::make_unique<EncoderOf<Words>>(plan.model);
    });
  }

  nb::bytes prelude() const { return nb::bytes(prelude_.data(), prelude_.size()); }
  std::uint64_t estimated_bytes() const { return estimated_bytes_; }

  nb::object encode(const Bytes& source, const Bytes& base) const {
    const std::size_t word_bytes = kernel_->word_bytes();
    require_words(source.size(), base.size(), word_bytes);
    const std::size_t n = source.size() / word_bytes;
    bool is_unchanged = false;
    std::unique_ptr<std::uint8_t[]> out;
    std::size_t size = 0;
    {
      nb::gil_scoped_release unlocked;
      is_unchanged = std::memcmp(source.data(), base.data(), source.size()) == 0;
      if (!is_unchanged) {
        out = std::make_unique_for_overwrite<std::uint8_t[]>(kernel_->bound_bytes(n));
        size = kernel_->encode(source.data(), base.data(), n, out.get());
      }
    }
    if (size >= source.size()) return nb::none();
    return nb::bytes(out.get(), size);
  }

 private:
  std::unique_ptr<AnyEncoder> kernel_;
  std::vector<std::uint8_t> prelude_;
  std::uint64_t estimated_bytes_ = 0;
};

class FmDeltaDecoder {
 public:
  FmDeltaDecoder(int kind, const Bytes& prelude) {
    with_words(word_kind(kind), [&]<class Words>(Words) {
      const auto model =
          parse_prelude(prelude.data(), prelude.size(), Words::key_bits, Words::word_bits);
      if (!model) throw nb::value_error("no encoder writes such a prelude");
      kernel_ = std::make_unique<DecoderOf<Words>>(*model);
    });
  }

  void decode(const Bytes& stream, const Bytes& base, const WritableBytes& out) const {
    require_words(out.size(), base.size(), kernel_->word_bytes());
    bool is_sound = false;
    {
      nb::gil_scoped_release unlocked;
      is_sound = kernel_->decode(stream.data(), stream.size(), base.data(), out.data(),
                                 out.size() / kernel_->word_bytes());
    }
    if (!is_sound) throw nb::value_error("no encoder writes such a block");
  }

 private:
  std::unique_ptr<AnyDecoder> kernel_;
};

}  // namespace
}  // namespace deltahub

// Stubs name the buffers by what callers hold; nanobind's own names need numpy arrays.
#define BUFFER "bytes | bytearray | memoryview"

NB_MODULE(_native, m) {
  using namespace deltahub;
  m.doc() = "Native kernels of deltahub.codecs.";

  nb::class_<FmDeltaEncoder>(m, "FmDeltaEncoder",
                             "The model of one frame, ready to encode its blocks.")
      .def(nb::init<int, const Bytes&, const Bytes&>(), "kind"_a, "source"_a, "base"_a,
           nb::sig("def __init__(self, kind: int, source: " BUFFER ", base: " BUFFER ") -> None"),
           "Plans the model from all words of a frame. kind: see fm_delta.WORD_KINDS.\n\n"
           "ValueError unless source and base are as many words, at least one.")
      .def_prop_ro("prelude", &FmDeltaEncoder::prelude)
      .def_prop_ro("estimated_bytes", &FmDeltaEncoder::estimated_bytes,
                   "What prelude and coded blocks will take, from a sample.")
      .def("encode", &FmDeltaEncoder::encode, "source"_a, "base"_a,
           nb::sig("def encode(self, source: " BUFFER ", base: " BUFFER ") -> bytes | None"),
           "One block's stream: empty where it equals its base, None where coding does not pay.");

  nb::class_<FmDeltaDecoder>(m, "FmDeltaDecoder", "A prelude's tables, ready to decode blocks.")
      .def(nb::init<int, const Bytes&>(), "kind"_a, "prelude"_a,
           nb::sig("def __init__(self, kind: int, prelude: " BUFFER ") -> None"),
           "ValueError where no encoder writes such a prelude.")
      .def("decode", &FmDeltaDecoder::decode, "stream"_a, "base"_a, "out"_a,
           nb::sig("def decode(self, stream: " BUFFER ", base: " BUFFER
                   ", out: bytearray | memoryview) -> None"),
           "Fills `out` with one block. ValueError where no encoder writes such a stream.");
}
