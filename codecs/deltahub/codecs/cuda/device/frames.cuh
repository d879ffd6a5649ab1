// What the host tells the kernels of frames and their blocks, and how kernels report damage.
// deltahub/codecs/cuda/layout.py declares the same fields for the host.
#pragma once

#include "types.cuh"

namespace deltahub {

constexpr u32 max_classes = 64, max_rank = 64;

// How a block is stored; the values of BlockMode on the host.
constexpr u32 mode_unchanged = 0, mode_raw = 1, mode_coded = 2;
// Why a block is damaged; the values of BlockFault on the host.
constexpr u32 fault_stream = 2, fault_other_bytes = 3;

// A context: the first entry of its table, and the shift in the lowest bits.
constexpr u32 context_shift_bits = 6;
__device__ inline u32 table_begin(u32 context) { return context >> context_shift_bits; }
__device__ inline u32 shift_of(u32 context) { return context & low_mask(context_shift_bits); }

// One factor of a component of a low-rank product. Its numbers are coded divided by 2^zero_bits.
struct Factor {
  u32 context, zero_bits;
};

// The model of a frame, from its prelude. Addresses are of memory on the device.
struct Frame {
  const u8* stored;         // the blocks' stored bytes, each block at a multiple of 16 bytes
  const u32* entries;       // decoding tables of 2^table_log entries, one after the other
  const u32* classes;       // the contexts of max_classes classes; the last one is repeated
  const i16* column_scales;  // null if columns have no scales
  const void* decay_steps;  // a word for each value of the decay_bits highest mantissa bits
  const i16* right;         // right factor: rank rows of `columns` numbers
  const Factor* left;       // how blocks code the left factor
  i16* row_values;          // scratch memory: scales, flags and left factors of the blocks' rows
  u32 n_entries, table_log;
  u32 mantissa_bits, exponent_bits;  // both 0 for integers
  u32 zero_bits;      // trailing zero bits that words share and the coder leaves out
  u32 n_low;          // neuzip_lossless: mantissa bits that are not coded with the exponent
  i32 offset;         // added to the scales of row and column
  i32 last_class;
  u32 has_row_scales;
  u32 row_scales, flags;  // contexts
  u32 decay_bits;     // 0 if no row is a weight-decay row
  u32 rank;
  i32 floor;          // the exponent field of the product's unit
  u32 is_product_rounded;
  u32 columns;        // of the whole frame
};

struct Block {
  u64 stored_begin;   // in the frame's stored bytes: a raw block, or the stream of a coded one
  u64 begin, size;    // decoded bytes, counted from the frame's first
  u64 checksum;       // XXH3-64 of the decoded bytes, whose seed is `index`
  u64 row_values;     // index of this block's row values in the frame's scratch memory
  u32 stored_size;
  u32 mode;
  u32 index;          // of the block in its frame
  u32 rows, columns, first_column;
};

// Blocks [first, first + n) of one frame. A thread block decodes them, a warp for each.
struct Group {
  u32 frame, first, n;
};

// Where a frame's words go, and the words that it is a difference from.
struct Target {
  u8* out;
  const u8* base;
};

static_assert(sizeof(Frame) == 128 && sizeof(Block) == 64 && sizeof(Group) == 12 &&
                  sizeof(Target) == 16,
              "the host declares structs of these sizes");

// Keeps the first fault of all: that of the first frame, then of its first block.
__device__ inline void report(u64* status, u32 frame, u32 block, u32 fault) {
  atomicMin(status, u64(frame) << 32 | u64(block) << 8 | fault);
}

}  // namespace deltahub
