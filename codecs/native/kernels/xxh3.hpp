// XXH3-64, the checksum of codecs/spec/frame.md. Names follow the XXH3 specification: stripes,
// accumulators, secret, scramble, avalanche.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "base/isa.hpp"
#include "base/words.hpp"
#include "kernels/kernels.hpp"

DELTAHUB_BEGIN
namespace {

constexpr std::size_t stripe_bytes = 64, stripes_a_block = 16;
constexpr std::size_t secret_bytes = sizeof(ChecksumState::secret);
constexpr std::size_t last_secret_offset = secret_bytes - stripe_bytes;

// The secret without a seed.
constexpr std::uint8_t default_secret[secret_bytes] = {
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

// The eight accumulators, in registers from one stripe to the next.
struct Accumulators {
#if defined(__AVX512F__)
  __m512i all;

  static __m512i at(const void* bytes) { return _mm512_loadu_si512(bytes); }
  explicit Accumulators(const std::uint64_t* accumulators) : all(at(accumulators)) {}
  void store_to(std::uint64_t* accumulators) const { _mm512_storeu_si512(accumulators, all); }

  void add(const std::uint8_t* stripe, const std::uint8_t* secret) {
    const __m512i words = at(stripe), mixed = _mm512_xor_si512(words, at(secret));
    const __m512i product = _mm512_mul_epu32(mixed, _mm512_srli_epi64(mixed, 32));
    const __m512i neighbours = _mm512_shuffle_epi32(words, _MM_PERM_BADC);
    all = _mm512_add_epi64(all, _mm512_add_epi64(product, neighbours));
  }
  void scramble(const std::uint8_t* secret) {
    const __m512i mixed = _mm512_ternarylogic_epi64(all, _mm512_srli_epi64(all, 47), at(secret),
                                                    0x96);  // a ^ b ^ c
    const __m512i factor = _mm512_set1_epi64(std::int64_t(prime32[0]));
    const __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(mixed, 32), factor);
    all = _mm512_add_epi64(_mm512_mul_epu32(mixed, factor), _mm512_slli_epi64(high, 32));
  }
#elif defined(__AVX2__)
  __m256i halves[2];

  static __m256i at(const void* bytes) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(bytes));
  }
  explicit Accumulators(const std::uint64_t* accumulators)
      : halves{at(accumulators), at(accumulators + 4)} {}
  void store_to(std::uint64_t* accumulators) const {
    for (int i = 0; i < 2; ++i)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(accumulators + 4 * i), halves[i]);
  }

  void add(const std::uint8_t* stripe, const std::uint8_t* secret) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m256i words = at(stripe + 32 * i);
      const __m256i mixed = _mm256_xor_si256(words, at(secret + 32 * i));
      const __m256i product = _mm256_mul_epu32(mixed, _mm256_srli_epi64(mixed, 32));
      const __m256i neighbours = _mm256_shuffle_epi32(words, 0x4e);
      halves[i] = _mm256_add_epi64(halves[i], _mm256_add_epi64(product, neighbours));
    }
  }
  void scramble(const std::uint8_t* secret) {
    const __m256i factor = _mm256_set1_epi64x(std::int64_t(prime32[0]));
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m256i mixed =
          _mm256_xor_si256(_mm256_xor_si256(halves[i], _mm256_srli_epi64(halves[i], 47)),
                           at(secret + 32 * i));
      const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(mixed, 32), factor);
      halves[i] = _mm256_add_epi64(_mm256_mul_epu32(mixed, factor), _mm256_slli_epi64(high, 32));
    }
  }
#else
  std::uint64_t each[8];

  explicit Accumulators(const std::uint64_t* accumulators) {
    std::memcpy(each, accumulators, sizeof each);
  }
  void store_to(std::uint64_t* accumulators) const { std::memcpy(accumulators, each, sizeof each); }

  void add(const std::uint8_t* stripe, const std::uint8_t* secret) {
#pragma GCC unroll 8
    for (std::size_t i = 0; i < 8; ++i) {
      const auto mixed = load<std::uint64_t>(stripe + 8 * i) ^ load<std::uint64_t>(secret + 8 * i);
      each[i] += load<std::uint64_t>(stripe + 8 * (i ^ 1)) + (mixed & 0xffffffff) * (mixed >> 32);
    }
  }
  void scramble(const std::uint8_t* secret) {
#pragma GCC unroll 8
    for (std::size_t i = 0; i < 8; ++i) {
      const std::uint64_t mixed = each[i] ^ each[i] >> 47 ^ load<std::uint64_t>(secret + 8 * i);
      each[i] = mixed * prime32[0];
    }
  }
#endif
};

inline std::uint64_t folded_product(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = Wide(a) * b;
  return std::uint64_t(product) ^ std::uint64_t(product >> 64);
}

inline std::uint64_t avalanche(std::uint64_t sum) {
  sum = (sum ^ sum >> 37) * 0x165667919e3779f9;
  return sum ^ sum >> 32;
}

// The exclusive or of two adjacent words of the default secret.
inline std::uint64_t secret_xor(std::size_t at) {
  return load<std::uint64_t>(default_secret + at) ^ load<std::uint64_t>(default_secret + at + 8);
}

// At most 16 bytes.
inline std::uint64_t checksum_up_to_16(const std::uint8_t* bytes, std::size_t n,
                                       std::uint64_t seed) {
  if (n > 8) {
    const std::uint64_t low = load<std::uint64_t>(bytes) ^ (secret_xor(24) + seed);
    const std::uint64_t high = load<std::uint64_t>(bytes + n - 8) ^ (secret_xor(40) - seed);
    return avalanche(n + __builtin_bswap64(low) + high + folded_product(low, high));
  }
  if (n >= 4) {
    seed ^= std::uint64_t(__builtin_bswap32(std::uint32_t(seed))) << 32;
    const std::uint64_t words =
        load<std::uint32_t>(bytes + n - 4) + (std::uint64_t(load<std::uint32_t>(bytes)) << 32);
    constexpr std::uint64_t factor = 0x9fb21c651e98df25;
    std::uint64_t sum = words ^ (secret_xor(8) - seed);
    sum = (sum ^ std::rotl(sum, 49) ^ std::rotl(sum, 24)) * factor;
    sum = (sum ^ ((sum >> 35) + n)) * factor;
    return sum ^ sum >> 28;
  }
  std::uint64_t sum = seed ^ secret_xor(56);
  if (n > 0) {
    const std::uint32_t all = std::uint32_t(bytes[0]) << 16 | std::uint32_t(bytes[n / 2]) << 24 |
                              bytes[n - 1] | std::uint32_t(n) << 8;
    const std::uint32_t key =
        load<std::uint32_t>(default_secret) ^ load<std::uint32_t>(default_secret + 4);
    sum = all ^ (key + seed);
  }
  sum = (sum ^ sum >> 33) * prime64[1];
  sum = (sum ^ sum >> 29) * prime64[2];
  return sum ^ sum >> 32;
}

// 17 to 240 bytes.
inline std::uint64_t checksum_17_to_240(const std::uint8_t* bytes, std::size_t n,
                                        std::uint64_t seed) {
  const auto mixed = [&](std::size_t at, std::size_t key) {
    const std::uint8_t* const secret = default_secret + key;
    return folded_product(
        load<std::uint64_t>(bytes + at) ^ (load<std::uint64_t>(secret) + seed),
        load<std::uint64_t>(bytes + at + 8) ^ (load<std::uint64_t>(secret + 8) - seed));
  };
  std::uint64_t sum = n * prime64[0];
  if (n <= 128) {  // from both ends to the middle
    for (std::size_t i = 0; i <= (n - 1) / 32; ++i)
      sum += mixed(16 * i, 32 * i) + mixed(n - 16 * (i + 1), 32 * i + 16);
    return avalanche(sum);
  }
  for (std::size_t i = 0; i < 8; ++i) sum += mixed(16 * i, 16 * i);
  sum = avalanche(sum);
  for (std::size_t i = 8; i < n / 16; ++i) sum += mixed(16 * i, 16 * (i - 8) + 3);
  return avalanche(sum + mixed(n - 16, 119));
}

// Longer inputs use accumulators and can be hashed part by part.
constexpr std::size_t max_short_bytes = 240;

void begin_checksum(ChecksumState& state, std::size_t n, std::uint64_t seed) {
  state.n = n;
  state.seed = seed;
  state.n_done = 0;
  if (n <= max_short_bytes) return;
  constexpr std::uint64_t initial[8] = {prime32[2], prime64[0], prime64[1], prime64[2],
                                        prime64[3], prime32[1], prime64[4], prime32[0]};
  std::memcpy(state.accumulators, initial, sizeof initial);
  for (std::size_t i = 0; i < secret_bytes; i += 16) {
    store<std::uint64_t>(state.secret + i, load<std::uint64_t>(default_secret + i) + seed);
    store<std::uint64_t>(state.secret + i + 8, load<std::uint64_t>(default_secret + i + 8) - seed);
  }
}

// Consumes ready blocks of stripes, except a block with which the input ends.
void add_checksum(ChecksumState& state, const std::uint8_t* bytes, std::size_t n_ready) {
  constexpr std::size_t block_bytes = stripes_a_block * stripe_bytes;
  if (state.n <= max_short_bytes) return;
  // The last stripe uses another part of the secret.
  const std::size_t end = std::min(n_ready, state.n - 1);
  Accumulators accumulators(state.accumulators);
  for (; state.n_done + block_bytes <= end; state.n_done += block_bytes) {
    const std::uint8_t* const block = bytes + state.n_done;
    // Hardware prefetch stops at page ends, so the next page is prefetched here. Bytes beyond
    // `end` may not exist yet.
    constexpr std::size_t page_bytes = 4096;
    if (end - state.n_done >= page_bytes + block_bytes)
#pragma GCC unroll 16
      for (std::size_t i = 0; i < stripes_a_block; ++i)
        __builtin_prefetch(block + page_bytes + i * stripe_bytes);
#pragma GCC unroll 4
    for (std::size_t i = 0; i < stripes_a_block; ++i)
      accumulators.add(block + i * stripe_bytes, state.secret + 8 * i);
    accumulators.scramble(state.secret + last_secret_offset);
  }
  accumulators.store_to(state.accumulators);
}

std::uint64_t end_checksum(ChecksumState& state, const std::uint8_t* bytes) {
  const std::size_t n = state.n;
  if (n <= 16) return checksum_up_to_16(bytes, n, state.seed);
  if (n <= max_short_bytes) return checksum_17_to_240(bytes, n, state.seed);
  add_checksum(state, bytes, n);
  Accumulators accumulators(state.accumulators);
  std::size_t at = state.n_done;
  for (std::size_t i = 0; at + stripe_bytes < n; at += stripe_bytes, ++i)
    accumulators.add(bytes + at, state.secret + 8 * i);
  // The last stripe may overlap the one before.
  accumulators.add(bytes + n - stripe_bytes, state.secret + last_secret_offset - 7);
  accumulators.store_to(state.accumulators);
  std::uint64_t sum = n * prime64[0];
  for (std::size_t i = 0; i < 8; i += 2)
    sum +=
        folded_product(state.accumulators[i] ^ load<std::uint64_t>(state.secret + 11 + 8 * i),
                       state.accumulators[i + 1] ^ load<std::uint64_t>(state.secret + 19 + 8 * i));
  return avalanche(sum);
}

}  // namespace
DELTAHUB_END
