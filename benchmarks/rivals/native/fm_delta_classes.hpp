// FM-Delta (Ning et al., NeurIPS 2024), from its description: words as integers in numeric order,
// symbol = sign and highest bit of the difference or "equal" (2 B + 1 classes), one adaptive order-0
// model a tensor, the bits below the highest one raw. The raw bits lie in a stream of their own:
// as many as in the paper's single stream, and faster to read.
#pragma once

#include "range_coder.hpp"

namespace rivals {

template <typename Word>
struct FmDelta {
    static constexpr int kBits = 8 * sizeof(Word);
    static constexpr Word kTop = static_cast<Word>(Word{1} << (kBits - 1));

    static Word ordered(Word w) {
        return static_cast<Word>((w & kTop) != 0 ? ~w : w | kTop);
    }
    static Word unordered(Word m) {
        return static_cast<Word>((m & kTop) != 0 ? m & ~kTop : ~m);
    }

    // Room that encode() may need for n words.
    static std::size_t bound(std::size_t n) { return 8 + 2 * n + 16 + sizeof(Word) * n + 16; }

    // out: at least bound(n) bytes. The bytes used: u64 length of the symbols, symbols, raw bits.
    static std::size_t encode(const Word* words, const Word* base, std::size_t n,
                              std::uint8_t* out, std::uint8_t* raw_scratch) {
        Model model(2 * kBits + 1);
        RangeEncoder coder(out + 8);
        std::uint8_t* raw = raw_scratch;
        std::uint64_t held = 0;
        int n_held = 0;
        for (std::size_t i = 0; i < n; i++) {
            const Word f = ordered(words[i]);
            const Word p = ordered(base[i]);
            int symbol = kBits;
            if (f != p) {
                const bool is_up = f > p;
                const Word d = static_cast<Word>(is_up ? f - p : p - f);
                const int k = std::bit_width(d) - 1;
                symbol = is_up ? kBits + 1 + k : kBits - 1 - k;
                held |= static_cast<std::uint64_t>(d ^ (Word{1} << k)) << n_held;
                n_held += k;
                std::memcpy(raw, &held, 8);
                raw += n_held >> 3;
                held >>= n_held & ~7;
                n_held &= 7;
            }
            coder.encode(model.start(symbol), model.frequency(symbol));
            model.count(symbol);
        }
        if (n_held > 0) *raw++ = static_cast<std::uint8_t>(held);
        const std::uint64_t n_symbols = coder.finish();
        std::memcpy(out, &n_symbols, 8);
        const std::size_t n_raw = static_cast<std::size_t>(raw - raw_scratch);
        std::memcpy(out + 8 + n_symbols, raw_scratch, n_raw);
        return 8 + n_symbols + n_raw;
    }

    // False for a stream that is too short for its own lengths.
    static bool decode(const std::uint8_t* in, std::size_t size, const Word* base, std::size_t n,
                       Word* out) {
        std::uint64_t n_symbols;
        if (size < 8) return false;
        std::memcpy(&n_symbols, in, 8);
        if (n_symbols > size - 8) return false;
        Model model(2 * kBits + 1);
        RangeDecoder coder(in + 8, n_symbols);
        const std::uint8_t* raw = in + 8 + n_symbols;
        const std::uint64_t n_raw = size - 8 - n_symbols;
        std::uint64_t at = 0;
        for (std::size_t i = 0; i < n; i++) {
            const int symbol = model.symbol_at(coder.target());
            coder.take(model.start(symbol), model.frequency(symbol));
            model.count(symbol);
            const int off = symbol - kBits;
            Word m = ordered(base[i]);
            if (off != 0) {
                const int k = (off < 0 ? -off : off) - 1;
                if (at + k > 8 * n_raw) return false;
                std::uint64_t bits = 0;
                const std::uint64_t here = at >> 3;
                std::memcpy(&bits, raw + here, here + 8 <= n_raw ? 8 : n_raw - here);
                const Word low = static_cast<Word>(bits >> (at & 7) & ((std::uint64_t{1} << k) - 1));
                at += k;
                const Word d = static_cast<Word>((Word{1} << k) | low);
                m = static_cast<Word>(off > 0 ? m + d : m - d);
            }
            out[i] = unordered(m);
        }
        return true;
    }
};

}  // namespace rivals
