// XXH3 of 64 bits, as codecs/spec/frame.md asks for it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
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

inline std::uint64_t scattered(std::uint64_t sum) {
  sum = (sum ^ sum >> 37) * 0x165667919e3779f9;
  return sum ^ sum >> 32;
}

// Two words of the plain secret, one upon the other.
inline std::uint64_t secret_pair(std::size_t at) {
  return load<std::uint64_t>(plain_secret + at) ^ load<std::uint64_t>(plain_secret + at + 8);
}

// At most 16 bytes.
inline std::uint64_t checksum_of_few(const std::uint8_t* bytes, std::size_t n, std::uint64_t seed) {
  if (n > 8) {
    const std::uint64_t low = load<std::uint64_t>(bytes) ^ (secret_pair(24) + seed);
    const std::uint64_t high = load<std::uint64_t>(bytes + n - 8) ^ (secret_pair(40) - seed);
    return scattered(n + __builtin_bswap64(low) + high + folded_product(low, high));
  }
  if (n >= 4) {
    seed ^= std::uint64_t(__builtin_bswap32(std::uint32_t(seed))) << 32;
    const std::uint64_t words =
        load<std::uint32_t>(bytes + n - 4) + (std::uint64_t(load<std::uint32_t>(bytes)) << 32);
    constexpr std::uint64_t factor = 0x9fb21c651e98df25;
    std::uint64_t sum = words ^ (secret_pair(8) - seed);
    sum = (sum ^ std::rotl(sum, 49) ^ std::rotl(sum, 24)) * factor;
    sum = (sum ^ ((sum >> 35) + n)) * factor;
    return sum ^ sum >> 28;
  }
  std::uint64_t sum = seed ^ secret_pair(56);
  if (n > 0) {
    const std::uint32_t all = std::uint32_t(bytes[0]) << 16 | std::uint32_t(bytes[n / 2]) << 24 |
                              bytes[n - 1] | std::uint32_t(n) << 8;
    const std::uint32_t key =
        load<std::uint32_t>(plain_secret) ^ load<std::uint32_t>(plain_secret + 4);
    sum = all ^ (key + seed);
  }
  sum = (sum ^ sum >> 33) * prime64[1];
  sum = (sum ^ sum >> 29) * prime64[2];
  return sum ^ sum >> 32;
}

// 17 to 240 bytes.
inline std::uint64_t checksum_of_some(const std::uint8_t* bytes, std::size_t n,
                                      std::uint64_t seed) {
  const auto mixed = [&](std::size_t at, std::size_t key) {
    const std::uint8_t* const secret = plain_secret + key;
    return folded_product(
        load<std::uint64_t>(bytes + at) ^ (load<std::uint64_t>(secret) + seed),
        load<std::uint64_t>(bytes + at + 8) ^ (load<std::uint64_t>(secret + 8) - seed));
  };
  std::uint64_t sum = n * prime64[0];
  if (n <= 128) {  // from both ends inwards
    for (std::size_t i = 0; i <= (n - 1) / 32; ++i)
      sum += mixed(16 * i, 32 * i) + mixed(n - 16 * (i + 1), 32 * i + 16);
    return scattered(sum);
  }
  for (std::size_t i = 0; i < 8; ++i) sum += mixed(16 * i, 16 * i);
  sum = scattered(sum);
  for (std::size_t i = 8; i < n / 16; ++i) sum += mixed(16 * i, 16 * (i - 8) + 3);
  return scattered(sum + mixed(n - 16, 119));
}

// More than 240 bytes.
inline std::uint64_t checksum_of_many(const std::uint8_t* bytes, std::size_t n, std::uint64_t seed) {
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
  return scattered(sum);
}

inline std::uint64_t checksum(const std::uint8_t* bytes, std::size_t n, std::uint64_t seed) {
  if (n > 240) return checksum_of_many(bytes, n, seed);
  return n > 16 ? checksum_of_some(bytes, n, seed) : checksum_of_few(bytes, n, seed);
}

}  // namespace
DELTAHUB_END
