// Prediction of a word: its base plus a low-rank product, rounded to the type of the word. All in
// integers. See codecs/spec/fm_delta.md, "Prediction".
#pragma once

#include "frames.cuh"
#include "types.cuh"
#include "words.cuh"

namespace deltahub {

__device__ inline i32 bit_length(u32 value) { return 32 - __clz(i32(value)); }

// value / 2^n to the nearest integer, ties to even; n < 32.
__device__ inline u32 rounded_quotient(u32 value, i32 n) {
  if (n <= 0) return value;
  return (value + (1u << n >> 1) - 1 + (value >> n & 1)) >> n;
}

// The bits that a sum keeps below the last mantissa bit.
__device__ inline i32 guard_bits(const Frame& frame) {
  return frame.mantissa_bits == 7 ? 14 : frame.mantissa_bits == 10 ? 11 : 6;
}

// A product rounded to the precision of the type, modulo 2^32.
__device__ inline i32 rounded_product(const Frame& frame, i32 product) {
  const u32 magnitude = product < 0 ? 0 - u32(product) : u32(product);
  const i32 n_digits = i32(frame.mantissa_bits) + 1 - i32(frame.zero_bits);
  const i32 drop = larger(bit_length(magnitude) - n_digits, 0);
  const u32 rounded = rounded_quotient(magnitude, drop) << drop;
  return i32(product < 0 ? 0 - rounded : rounded);
}

// The sum over the components of left[k * left_stride] * right[k * right_stride], modulo 2^32.
__device__ inline i32 product_of(const i16* left, u32 left_stride, const i16* right,
                                 u32 right_stride, u32 rank) {
  u32 sum = 0;
  for (u32 k = 0; k < rank; ++k)
    sum += u32(i32(left[u64(k) * left_stride]) * i32(right[u64(k) * right_stride]));
  return i32(sum);
}

// product: in units of the last guard bit at exponent field frame.floor.
template <class Word>
__device__ inline Word predicted(const Frame& frame, Word base, i32 product) {
  constexpr i32 limit = i32(1) << 30;
  const i32 m = i32(frame.mantissa_bits), guard = guard_bits(frame);
  const i32 infinite = i32(low_mask(frame.exponent_bits));
  const i32 field = i32(exponent_of(frame, base));
  const i32 exponent = larger(field, 1), common = larger(exponent, frame.floor);
  const i32 step = limited(product >> smaller(common - frame.floor, 31), -limit, limit - 1);
  if (field == infinite || step == 0) return base;
  const u32 mantissa = (u32(base) & low_mask(u32(m))) | u32(field > 0) << m;
  const i32 size = i32(mantissa << guard >> smaller(common - exponent, 31));
  const bool is_negative = (base & top_bit<Word>) != 0;
  const i32 sum = (is_negative ? -size : size) + step;
  const u32 magnitude = sum < 0 ? 0 - u32(sum) : u32(sum);
  // A sum of 0 takes these steps, too, because frames depend on their result.
  const i32 result_exponent = larger(common + bit_length(magnitude) - (m + 1 + guard), 1);
  const i32 drop = result_exponent + guard - common;
  const u32 digits = drop > 0 ? rounded_quotient(magnitude, drop) : magnitude << -drop;
  const u32 word = (u32(result_exponent - 1) << m) + digits;
  if (word >= u32(infinite) << m) return base;
  const bool has_sign = sum == 0 ? is_negative : sum < 0;
  return Word(word | (has_sign ? u32(top_bit<Word>) : 0));
}

}  // namespace deltahub
