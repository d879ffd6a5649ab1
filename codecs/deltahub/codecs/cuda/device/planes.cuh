// What the host tells the kernels that join the planes of an export. deltahub/codecs/cuda/layout.py
// declares the same fields for the host.
#pragma once

#include "types.cuh"

namespace deltahub {

// Consecutive words of a weight that were coded together: a slice, whose frame of words is decoded.
struct Piece {
  const u8* scales;  // null if the weight has no blocks
  u32 first_plane, n_planes;
  u32 mantissa_bits, exponent_bits;
  u32 fill;          // the bits that a reader puts in place of those that it leaves out
  u32 block_bits;    // a block has 2^block_bits words
};

// `width` mantissa bits of each word, from bit `low` on.
struct Plane {
  const u8* bits;
  u32 low, width;
};

static_assert(sizeof(Piece) == 32 && sizeof(Plane) == 16,
              "the host declares structs of these sizes");

}  // namespace deltahub
