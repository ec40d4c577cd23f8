// Where the keys and values of one split and head lie.
//
// Responsible for: finding them through the block table, and widening them for an item of many
// queries.  It computes nothing with them.
//
// Inside a block the keys of a head stand by dimension (head_size, block_size), its values by token
// (block_size, head_size): scores take neighbouring keys at a time, outputs neighbouring
// dimensions.  A split is cut into pieces of 16 keys, which lie in one block whatever its size.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention_plan.h"
#include "cache_layout.h"
#include "kvserve.h"
#include "matrix.h"
#include "simd.h"

namespace kvserve {

constexpr int64_t kPieceKeys = 16;
constexpr int64_t kSplitPieces = kSplitKeys / kPieceKeys;
constexpr int64_t kChunkPieces = 4;  // of a widened copy, whose keys lie side by side

// Rows in float are as wide as whole vectors of any instruction set.
KV_INLINE int64_t padded(int64_t n) { return ceil_div(n, 16) * 16; }

// W numbers of a format as float; int8 ones without their scale.
template <int Format>
KV_INLINE F load_elements(const char* at) {
  if constexpr (Format == KV_CACHE_INT8) return load_int8(reinterpret_cast<const int8_t*>(at));
  else if constexpr (Format == KV_CACHE_BFLOAT16)
    return load_bf16(reinterpret_cast<const uint16_t*>(at));
  else return load(reinterpret_cast<const float*>(at));
}

// Some of a split's keys, counted from its first.
struct Range {
  int64_t begin, end;
  bool empty() const { return begin >= end; }
};

// What a query sees of the split that starts `position` keys before it.
KV_INLINE Range visible(int64_t position, int64_t window) {
  const int64_t low = window > 0 ? position - window + 1 : 0;
  return {std::max<int64_t>(0, low), std::min(kSplitKeys, position + 1)};
}

struct SplitSource {
  Range range;  // nothing outside it is read, except up to the next multiple of 16
  int32_t format;       // of the numbers; a widened copy's is float32
  bool is_scaled;       // whether scores and weights are yet to be multiplied by the scales below
  int64_t key_bytes;    // from one dimension of a key to the next
  int64_t value_bytes;  // from one key's values to the next key's
  const char* keys[kSplitPieces];
  const char* values[kSplitPieces];
  const uint16_t* key_scales[kSplitPieces];  // bfloat16, one a key
  const uint16_t* value_scales[kSplitPieces];

  int64_t first_piece() const { return range.begin / kPieceKeys; }
  int64_t end_piece() const { return ceil_div(range.end, kPieceKeys); }
};

SplitSource locate(const kv_cache_layer& cache, const int64_t* blocks, int64_t head, int64_t split,
                   Range range);

int64_t widened_floats(int64_t head_size);

// A copy in float, for an item whose many queries read it again and again.  Scales stay apart: a
// product's rounding must not depend on whether a copy was made.
SplitSource widen(const SplitSource& from, int64_t head_size, float* memory);

}  // namespace kvserve
