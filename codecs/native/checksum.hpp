// XXH3 of 64 bits, as codecs/spec/frame.md asks for it: inputs of more than 240 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "isa.hpp"
#include "words.hpp"

DELTAHUB_BEGIN
namespace {

constexpr std::size_t stripe_bytes = 64, stripes_a_block = 16, secret_bytes = 192;

// The secret of an input without a seed.
constexpr std::uint8_t plain_secret[secret_bytes] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e};

constexpr std::uint64_t prime32[3] = {0x9e3779b1, 0x85ebca77, 0xc2b2ae3d};
constexpr std::uint64_t prime64[5] = {0x9e3779b185ebca87, 0xc2b2ae3d27d4eb4f, 0x165667b19e3779f9,
                                      0x85ebca77c2b2ae63, 0x27d4eb2f165667c5};

struct ChecksumLanes {
  alignas(64) std::uint64_t sums[8];

  void add(const std::uint8_t* stripe, const std::uint8_t* secret) {
#if defined(__AVX2__)
    for (std::size_t i = 0; i < 8; i += 4) {
      const auto at = [i](const std::uint8_t* bytes) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + 8 * i));
      };
      auto* const sum = reinterpret_cast<__m256i*>(sums + i);
      const __m256i words = at(stripe), mixed = _mm256_xor_si256(words, at(secret));
      const __m256i product = _mm256_mul_epu32(mixed, _mm256_srli_epi64(mixed, 32));
      const __m256i neighbours = _mm256_shuffle_epi32(words, 0x4e);
      _mm256_store_si256(
          sum, _mm256_add_epi64(_mm256_load_si256(sum), _mm256_add_epi64(product, neighbours)));
    }
#else
    for (std::size_t i = 0; i < 8; ++i) {
      const auto mixed = load<std::uint64_t>(stripe + 8 * i) ^ load<std::uint64_t>(secret + 8 * i);
      sums[i] += load<std::uint64_t>(stripe + 8 * (i ^ 1)) + (mixed & 0xffffffff) * (mixed >> 32);
    }
#endif
  }
  void scramble(const std::uint8_t* secret) {
    for (std::size_t i = 0; i < 8; ++i) {
      const std::uint64_t mixed = sums[i] ^ sums[i] >> 47 ^ load<std::uint64_t>(secret + 8 * i);
      sums[i] = mixed * prime32[0];
    }
  }
};

inline std::uint64_t folded_product(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = Wide(a) * b;
  return std::uint64_t(product) ^ std::uint64_t(product >> 64);
}

// n > 240.
inline std::uint64_t checksum(const std::uint8_t* bytes, std::size_t n, std::uint64_t seed) {
  std::uint8_t secret[secret_bytes];
  for (std::size_t i = 0; i < secret_bytes; i += 16) {
    store<std::uint64_t>(secret + i, load<std::uint64_t>(plain_secret + i) + seed);
    store<std::uint64_t>(secret + i + 8, load<std::uint64_t>(plain_secret + i + 8) - seed);
  }
  ChecksumLanes lanes{{prime32[2], prime64[0], prime64[1], prime64[2], prime64[3], prime32[1],
                       prime64[4], prime32[0]}};
  constexpr std::size_t last = secret_bytes - stripe_bytes;
  std::size_t at = 0;
  // The last stripe has a secret of its own, and may overlap the one before.
  for (std::size_t stripe = 0; at + stripe_bytes < n; at += stripe_bytes) {
    lanes.add(bytes + at, secret + 8 * stripe);
    if (++stripe == stripes_a_block) {
      lanes.scramble(secret + last);
      stripe = 0;
    }
  }
  lanes.add(bytes + n - stripe_bytes, secret + last - 7);
  std::uint64_t sum = n * prime64[0];
  for (std::size_t i = 0; i < 8; i += 2)
    sum += folded_product(lanes.sums[i] ^ load<std::uint64_t>(secret + 11 + 8 * i),
                          lanes.sums[i + 1] ^ load<std::uint64_t>(secret + 19 + 8 * i));
  sum = (sum ^ sum >> 37) * 0x165667919e3779f9;
  return sum ^ sum >> 32;
}

}  // namespace
DELTAHUB_END
