// A range coder of 64 bits with totals of 2^16, and the quasi-static model that FM-Delta codes with.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rivals {

constexpr int kTotalBits = 16;

// Frequencies that sum to 2^16. They change only every `interval` symbols: 1024 once the model has
// warmed up, when older counts are halved. Source: Schindler's quasi-static model, as described.
class Model {
  public:
    static constexpr int kMaxSymbols = 65;
    static constexpr int kLookupBits = 9;

    explicit Model(int n_symbols) : n_symbols_(n_symbols) {
        for (int s = 0; s < n_symbols; s++) weight_[s] = 1;
        rebuild();
    }

    std::uint32_t start(int symbol) const { return start_[symbol]; }
    std::uint32_t frequency(int symbol) const { return start_[symbol + 1] - start_[symbol]; }

    int symbol_at(std::uint32_t target) const {
        int symbol = lookup_[target >> (kTotalBits - kLookupBits)];
        while (start_[symbol + 1] <= target) symbol++;
        return symbol;
    }

    void count(int symbol) {
        weight_[symbol] += kIncrement;
        if (--left_ == 0) rescale();
    }

  private:
    static constexpr std::uint32_t kIncrement = 32;
    static constexpr std::uint32_t kLongest = 1024;

    void rescale() {
        if (interval_ < kLongest) {
            interval_ *= 2;
        } else {
            for (int s = 0; s < n_symbols_; s++) weight_[s] = (weight_[s] >> 1) | 1;
        }
        rebuild();
    }

    void rebuild() {
        left_ = interval_;
        std::uint64_t sum = 0;
        int largest = 0;
        for (int s = 0; s < n_symbols_; s++) {
            sum += weight_[s];
            if (weight_[s] > weight_[largest]) largest = s;
        }
        // Every symbol keeps a share of at least one; the likeliest takes what rounding leaves.
        const std::uint32_t shared = (1u << kTotalBits) - n_symbols_;
        std::uint32_t share[kMaxSymbols];
        std::uint32_t given = 0;
        for (int s = 0; s < n_symbols_; s++) {
            share[s] = 1 + static_cast<std::uint32_t>(weight_[s] * std::uint64_t{shared} / sum);
            given += share[s];
        }
        share[largest] += (1u << kTotalBits) - given;
        std::uint32_t at = 0;
        int slot = 0;
        for (int s = 0; s < n_symbols_; s++) {
            start_[s] = at;
            at += share[s];
            const int last = static_cast<int>((at - 1) >> (kTotalBits - kLookupBits));
            while (slot <= last) lookup_[slot++] = static_cast<std::uint8_t>(s);
        }
        start_[n_symbols_] = at;
    }

    int n_symbols_;
    std::uint32_t interval_ = 8;
    std::uint32_t left_ = 8;
    std::uint64_t weight_[kMaxSymbols];
    std::uint32_t start_[kMaxSymbols + 1];
    std::uint8_t lookup_[1 << kLookupBits];
};

// Writes 32 bits at a time; a carry walks back through what was written. The caller gives room for
// the worst case: 16 bits a symbol and 16 bytes.
class RangeEncoder {
  public:
    explicit RangeEncoder(std::uint8_t* out) : begin_(out), out_(out) {}

    void encode(std::uint32_t start, std::uint32_t frequency) {
        const std::uint64_t unit = range_ >> kTotalBits;
        const std::uint64_t before = low_;
        low_ += unit * start;
        if (low_ < before) carry();
        range_ = unit * frequency;
        if (range_ < (std::uint64_t{1} << 32)) {
            put(static_cast<std::uint32_t>(low_ >> 32));
            low_ <<= 32;
            range_ <<= 32;
        }
    }

    std::size_t finish() {
        put(static_cast<std::uint32_t>(low_ >> 32));
        put(static_cast<std::uint32_t>(low_));
        return static_cast<std::size_t>(out_ - begin_);
    }

  private:
    void put(std::uint32_t word) {
        const std::uint32_t big = __builtin_bswap32(word);
        std::memcpy(out_, &big, 4);
        out_ += 4;
    }

    void carry() {
        std::uint8_t* at = out_;
        while (++*--at == 0) {
        }
    }

    std::uint8_t* begin_;
    std::uint8_t* out_;
    std::uint64_t low_ = 0;
    std::uint64_t range_ = ~std::uint64_t{0};
};

// Reads zeros beyond the end: damage gives wrong symbols, never a read outside.
class RangeDecoder {
  public:
    RangeDecoder(const std::uint8_t* in, std::size_t size) : in_(in), end_(in + size) {
        code_ = std::uint64_t{word()} << 32;
        code_ |= word();
    }

    std::uint32_t target() {
        unit_ = range_ >> kTotalBits;
        const std::uint64_t target = code_ / unit_;
        return target < (1u << kTotalBits) ? static_cast<std::uint32_t>(target)
                                           : (1u << kTotalBits) - 1;
    }

    void take(std::uint32_t start, std::uint32_t frequency) {
        code_ -= unit_ * start;
        range_ = unit_ * frequency;
        if (range_ < (std::uint64_t{1} << 32)) {
            code_ = code_ << 32 | word();
            range_ <<= 32;
        }
    }

  private:
    std::uint32_t word() {
        if (end_ - in_ < 4) return 0;
        std::uint32_t value;
        std::memcpy(&value, in_, 4);
        in_ += 4;
        return __builtin_bswap32(value);
    }

    const std::uint8_t* in_;
    const std::uint8_t* end_;
    std::uint64_t code_ = 0;
    std::uint64_t range_ = ~std::uint64_t{0};
    std::uint64_t unit_ = 0;
};

}  // namespace rivals
