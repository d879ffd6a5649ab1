// The C interface of the rivals. Words of 16 and 32 bits; base and words have n of them.
#include <memory>

#include "fm_delta_classes.hpp"
#include "planes.hpp"

namespace {

template <typename Word>
std::size_t fm_delta_encode(const void* words, const void* base, std::size_t n, std::uint8_t* out) {
    const auto scratch = std::make_unique_for_overwrite<std::uint8_t[]>(sizeof(Word) * n + 16);
    return rivals::FmDelta<Word>::encode(static_cast<const Word*>(words),
                                         static_cast<const Word*>(base), n, out, scratch.get());
}

template <typename Word>
void map_delta(const Word* words, const Word* base, std::size_t n, Word* out) {
    using Coder = rivals::FmDelta<Word>;
    for (std::size_t i = 0; i < n; i++) {
        out[i] = static_cast<Word>(Coder::ordered(words[i]) - Coder::ordered(base[i]));
    }
}

template <typename Word>
void add_delta(const Word* deltas, const Word* base, std::size_t n, Word* out) {
    using Coder = rivals::FmDelta<Word>;
    for (std::size_t i = 0; i < n; i++) {
        out[i] = Coder::unordered(static_cast<Word>(Coder::ordered(base[i]) + deltas[i]));
    }
}

}  // namespace

extern "C" {

std::size_t fm_delta_bound(std::size_t n, int itemsize) {
    return itemsize == 2 ? rivals::FmDelta<std::uint16_t>::bound(n)
                         : rivals::FmDelta<std::uint32_t>::bound(n);
}

std::size_t fm_delta_encode(const void* words, const void* base, std::size_t n, int itemsize,
                            std::uint8_t* out) {
    return itemsize == 2 ? fm_delta_encode<std::uint16_t>(words, base, n, out)
                         : fm_delta_encode<std::uint32_t>(words, base, n, out);
}

int fm_delta_decode(const std::uint8_t* in, std::size_t size, const void* base, std::size_t n,
                    int itemsize, void* out) {
    if (itemsize == 2) {
        return rivals::FmDelta<std::uint16_t>::decode(
            in, size, static_cast<const std::uint16_t*>(base), n, static_cast<std::uint16_t*>(out));
    }
    return rivals::FmDelta<std::uint32_t>::decode(
        in, size, static_cast<const std::uint32_t*>(base), n, static_cast<std::uint32_t*>(out));
}

void xor_split(const void* words, const void* base, std::size_t n, int itemsize,
               std::uint8_t* planes) {
    if (itemsize == 2) {
        rivals::xor_split(static_cast<const std::uint16_t*>(words),
                          static_cast<const std::uint16_t*>(base), n, planes);
    } else {
        rivals::xor_split(static_cast<const std::uint32_t*>(words),
                          static_cast<const std::uint32_t*>(base), n, planes);
    }
}

void join_xor(const std::uint8_t* planes, const void* base, std::size_t n, int itemsize, void* out) {
    if (itemsize == 2) {
        rivals::join_xor(planes, static_cast<const std::uint16_t*>(base), n,
                         static_cast<std::uint16_t*>(out));
    } else {
        rivals::join_xor(planes, static_cast<const std::uint32_t*>(base), n,
                         static_cast<std::uint32_t*>(out));
    }
}

// The difference of two words in numeric order, modulo 2^B: what generic coders get to see.
void map_delta(const void* words, const void* base, std::size_t n, int itemsize, void* out) {
    if (itemsize == 2) {
        map_delta(static_cast<const std::uint16_t*>(words), static_cast<const std::uint16_t*>(base),
                  n, static_cast<std::uint16_t*>(out));
    } else {
        map_delta(static_cast<const std::uint32_t*>(words), static_cast<const std::uint32_t*>(base),
                  n, static_cast<std::uint32_t*>(out));
    }
}

void add_delta(const void* deltas, const void* base, std::size_t n, int itemsize, void* out) {
    if (itemsize == 2) {
        add_delta(static_cast<const std::uint16_t*>(deltas),
                  static_cast<const std::uint16_t*>(base), n, static_cast<std::uint16_t*>(out));
    } else {
        add_delta(static_cast<const std::uint32_t*>(deltas),
                  static_cast<const std::uint32_t*>(base), n, static_cast<std::uint32_t*>(out));
    }
}

}  // extern "C"
