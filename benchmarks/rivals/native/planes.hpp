// XOR with the base and byte planes, the transform of TensorX (TensorDex, SOSP 2026).
#pragma once

#include <cstddef>
#include <cstdint>

namespace rivals {

// planes: n * sizeof(Word) bytes, byte k of every word together.
template <typename Word>
void xor_split(const Word* words, const Word* base, std::size_t n, std::uint8_t* __restrict planes) {
    if constexpr (sizeof(Word) == 2) {
        std::uint8_t* __restrict low = planes;
        std::uint8_t* __restrict high = planes + n;
        for (std::size_t i = 0; i < n; i++) {
            const Word x = static_cast<Word>(words[i] ^ base[i]);
            low[i] = static_cast<std::uint8_t>(x);
            high[i] = static_cast<std::uint8_t>(x >> 8);
        }
    } else {
        for (std::size_t k = 0; k < sizeof(Word); k++) {
            std::uint8_t* __restrict plane = planes + k * n;
            for (std::size_t i = 0; i < n; i++) {
                plane[i] = static_cast<std::uint8_t>((words[i] ^ base[i]) >> (8 * k));
            }
        }
    }
}

template <typename Word>
void join_xor(const std::uint8_t* planes, const Word* base, std::size_t n, Word* __restrict out) {
    const std::uint8_t* p0 = planes;
    const std::uint8_t* p1 = planes + n;
    if constexpr (sizeof(Word) == 2) {
        for (std::size_t i = 0; i < n; i++) {
            out[i] = static_cast<Word>(base[i] ^ (p0[i] | p1[i] << 8));
        }
    } else {
        const std::uint8_t* p2 = planes + 2 * n;
        const std::uint8_t* p3 = planes + 3 * n;
        for (std::size_t i = 0; i < n; i++) {
            const std::uint32_t low = p0[i] | static_cast<std::uint32_t>(p1[i]) << 8;
            const std::uint32_t high = p2[i] | static_cast<std::uint32_t>(p3[i]) << 8;
            out[i] = base[i] ^ (low | high << 16);
        }
    }
}

}  // namespace rivals
