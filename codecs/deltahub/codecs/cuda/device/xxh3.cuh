// XXH3-64 of a block's decoded bytes, computed by a warp. See codecs/native/kernels/xxh3.hpp; the
// names follow the XXH3 specification.
#pragma once

#include "types.cuh"

namespace deltahub {

constexpr u32 stripe_bytes = 64, stripes_a_block = 16, stripe_words = 8;
constexpr u32 secret_words = 24, max_short_bytes = 240;
constexpr u32 last_secret_word = secret_words - stripe_words;

// The secret without a seed, as little endian words.
__device__ const u64 default_secret[secret_words] = {
    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072,
    0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0,
    0xcb00c391bb52283c, 0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
    0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a, 0x647378d9c97e9fc8,
    0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
    0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af};

constexpr u64 prime32_1 = 0x9e3779b1, prime32_2 = 0x85ebca77, prime32_3 = 0xc2b2ae3d;
constexpr u64 prime64_1 = 0x9e3779b185ebca87, prime64_2 = 0xc2b2ae3d27d4eb4f,
              prime64_3 = 0x165667b19e3779f9, prime64_4 = 0x85ebca77c2b2ae63,
              prime64_5 = 0x27d4eb2f165667c5;

// 32 or 64 bits of memory at any address.
__device__ inline u32 load_32(const u8* at) {
  if (u64(at) % 4 == 0) return *reinterpret_cast<const u32*>(at);
  return u32(at[0]) | u32(at[1]) << 8 | u32(at[2]) << 16 | u32(at[3]) << 24;
}
__device__ inline u64 load_64(const u8* at) {
  if (u64(at) % 8 == 0) return *reinterpret_cast<const u64*>(at);
  return u64(load_32(at + 4)) << 32 | load_32(at);
}
// 64 bits of a secret, from a byte on that is not a multiple of 8, or is.
__device__ inline u64 secret_at(const u64* secret, u32 byte) {
  const u32 word = byte / 8, shift = byte % 8 * 8;
  return shift == 0 ? secret[word] : secret[word] >> shift | secret[word + 1] << (64 - shift);
}

__device__ inline u64 folded_product(u64 a, u64 b) { return a * b ^ __umul64hi(a, b); }
__device__ inline u64 rotated(u64 value, u32 n) { return value << n | value >> (64 - n); }
__device__ inline u32 swapped_32(u32 value) {
  return value >> 24 | (value >> 8 & 0xff00) | (value & 0xff00) << 8 | value << 24;
}
__device__ inline u64 swapped_64(u64 value) {
  return u64(swapped_32(u32(value))) << 32 | swapped_32(u32(value >> 32));
}
__device__ inline u64 avalanche(u64 sum) {
  sum = (sum ^ sum >> 37) * 0x165667919e3779f9;
  return sum ^ sum >> 32;
}

// The exclusive or of two adjacent words of the secret without a seed.
__device__ inline u64 secret_xor(u32 word) {
  return default_secret[word] ^ default_secret[word + 1];
}

__device__ inline u64 checksum_up_to_16(const u8* bytes, u32 n, u64 seed) {
  if (n > 8) {
    const u64 low = load_64(bytes) ^ (secret_xor(3) + seed);
    const u64 high = load_64(bytes + n - 8) ^ (secret_xor(5) - seed);
    return avalanche(n + swapped_64(low) + high + folded_product(low, high));
  }
  if (n >= 4) {
    seed ^= u64(swapped_32(u32(seed))) << 32;
    const u64 words = load_32(bytes + n - 4) + (u64(load_32(bytes)) << 32);
    constexpr u64 factor = 0x9fb21c651e98df25;
    u64 sum = words ^ (secret_xor(1) - seed);
    sum = (sum ^ rotated(sum, 49) ^ rotated(sum, 24)) * factor;
    sum = (sum ^ ((sum >> 35) + n)) * factor;
    return sum ^ sum >> 28;
  }
  u64 sum = seed ^ secret_xor(7);
  if (n > 0) {
    const u32 all = u32(bytes[0]) << 16 | u32(bytes[n / 2]) << 24 | bytes[n - 1] | n << 8;
    sum = all ^ ((u32(default_secret[0]) ^ u32(default_secret[0] >> 32)) + seed);
  }
  sum = (sum ^ sum >> 33) * prime64_2;
  sum = (sum ^ sum >> 29) * prime64_3;
  return sum ^ sum >> 32;
}

__device__ inline u64 mixed_16(const u8* bytes, u32 secret_byte, u64 seed) {
  return folded_product(load_64(bytes) ^ (secret_at(default_secret, secret_byte) + seed),
                        load_64(bytes + 8) ^ (secret_at(default_secret, secret_byte + 8) - seed));
}

__device__ inline u64 checksum_17_to_240(const u8* bytes, u32 n, u64 seed) {
  u64 sum = n * prime64_1;
  if (n <= 128) {  // from both ends to the middle
    for (u32 i = 0; i <= (n - 1) / 32; ++i)
      sum += mixed_16(bytes + 16 * i, 32 * i, seed) +
             mixed_16(bytes + n - 16 * (i + 1), 32 * i + 16, seed);
    return avalanche(sum);
  }
  for (u32 i = 0; i < 8; ++i) sum += mixed_16(bytes + 16 * i, 16 * i, seed);
  sum = avalanche(sum);
  for (u32 i = 8; i < n / 16; ++i) sum += mixed_16(bytes + 16 * i, 16 * (i - 8) + 3, seed);
  return avalanche(sum + mixed_16(bytes + n - 16, 119, seed));
}

// The sum over the lanes that have the same accumulator.
__device__ inline u64 sum_of_groups(u64 value) {
  value += __shfl_xor_sync(all_lanes, value, 8);
  return value + __shfl_xor_sync(all_lanes, value, 16);
}

// What stripe words add to an accumulator. Each lane calls it, with zeros if it has no stripe.
__device__ inline u64 addend(u64 word, u64 secret, bool is_active) {
  const u64 neighbour = __shfl_xor_sync(all_lanes, word, 1), mixed = word ^ secret;
  return is_active ? neighbour + (mixed & 0xffffffff) * (mixed >> 32) : 0;
}

// More than max_short_bytes. Lane i has accumulator i % 8; lanes with the same accumulator share
// the stripes of a block. secret: secret_words words of shared memory of this warp.
__device__ inline u64 checksum_of_long(const u8* bytes, u64 n, u64 seed, u64* secret) {
  const u32 lane = lane_of_thread(), own = lane % stripe_words, group = lane / stripe_words;
  constexpr u32 n_groups = n_lanes / stripe_words;
  if (lane < secret_words) secret[lane] = default_secret[lane] + (lane % 2 == 0 ? seed : 0 - seed);
  __syncwarp();
  const u64 initial[stripe_words] = {prime32_3, prime64_1, prime64_2, prime64_3,
                                     prime64_4, prime32_2, prime64_5, prime32_1};
  u64 accumulator = initial[own], at = 0;
  constexpr u32 block_bytes = stripes_a_block * stripe_bytes;
  for (; at + block_bytes <= n - 1; at += block_bytes) {
    u64 sum = 0;
#pragma unroll
    for (u32 i = group; i < stripes_a_block; i += n_groups)
      sum += addend(load_64(bytes + at + i * stripe_bytes + 8 * own), secret[i + own], true);
    accumulator += sum_of_groups(sum);
    accumulator = (accumulator ^ accumulator >> 47 ^ secret[last_secret_word + own]) * prime32_1;
  }
  // The stripes after the last whole block; the very last one may overlap the one before.
  const u32 n_stripes = u32((n - 1 - at) / stripe_bytes);
  u64 sum = 0;
  for (u32 i = 0; i < n_stripes; i += n_groups) {
    const bool is_active = i + group < n_stripes;
    const u8* const stripe = bytes + at + (i + group) * stripe_bytes + 8 * own;
    const u64 word = is_active ? load_64(stripe) : 0;
    sum += addend(word, is_active ? secret[i + group + own] : 0, is_active);
  }
  const u64 last = load_64(bytes + n - stripe_bytes + 8 * own);
  sum += addend(last, secret_at(secret, 8 * last_secret_word - 7 + 8 * own), group == 0);
  accumulator += sum_of_groups(sum);
  const u64 key = secret_at(secret, 11 + 8 * own), mine = accumulator ^ key;
  const u64 pair = __shfl_xor_sync(all_lanes, mine, 1);
  u64 merged = own % 2 == 0 ? folded_product(mine, pair) : 0;
  for (u32 distance = 2; distance < stripe_words; distance *= 2)
    merged += __shfl_xor_sync(all_lanes, merged, distance);
  return avalanche(n * prime64_1 + merged);  // of lane 0
}

// The result of lane 0 is the checksum.
__device__ inline u64 checksum_of(const u8* bytes, u64 n, u64 seed, u64* secret) {
  if (n > max_short_bytes) return checksum_of_long(bytes, n, seed, secret);
  return n <= 16 ? checksum_up_to_16(bytes, u32(n), seed) : checksum_17_to_240(bytes, u32(n), seed);
}

}  // namespace deltahub
