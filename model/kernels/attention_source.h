// Where the keys and values of one split and head lie, and how they come near in time.
//
// Responsible for: finding them through the block table, widening them for an item of many queries,
// and asking memory for them ahead of use.  It computes nothing with them.
//
// Inside a block the keys of a head stand by dimension (head_size, block_size), its values by token
// (block_size, head_size): scores take neighbouring keys at a time, outputs neighbouring
// dimensions.  A split is cut into pieces of 16 keys, which lie in one block whatever its size.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention_plan.h"
#include "kvserve.h"
#include "matrix.h"
#include "simd.h"

namespace kvserve {

constexpr int64_t kPieceKeys = 16;
constexpr int64_t kSplitPieces = kSplitKeys / kPieceKeys;
constexpr int64_t kChunkPieces = 4;  // scored, and asked for, together

// Rows in float are as wide as whole vectors of any instruction set.
KV_INLINE int64_t padded(int64_t n) { return ceil_div(n, 16) * 16; }

template <bool IsBf16>
KV_INLINE F load_element(const char* at) {
  if (IsBf16) return load_bf16(reinterpret_cast<const uint16_t*>(at));
  return load(reinterpret_cast<const float*>(at));
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
  bool is_bf16;
  int64_t key_bytes;    // from one dimension of a key to the next
  int64_t value_bytes;  // from one key's values to the next key's
  const char* keys[kSplitPieces];
  const char* values[kSplitPieces];

  int64_t first_piece() const { return range.begin / kPieceKeys; }
  int64_t end_piece() const { return ceil_div(range.end, kPieceKeys); }
  int64_t element() const { return is_bf16 ? 2 : 4; }
};

SplitSource locate(const kv_cache_layer& cache, const int64_t* blocks, int64_t head, int64_t split,
                   Range range);

int64_t widened_floats(int64_t head_size);

// A copy in float, for an item whose many queries read it again and again.
SplitSource widen(const SplitSource& from, int64_t head_size, float* memory);

// Asks for pieces line by line while others are worked on.  Blocks lie apart, so the processor
// cannot guess them; and asked for all at once they would only wait for each other.
class Ahead {
 public:
  void keys_of(const SplitSource& source, int64_t head_size, int64_t begin, int64_t end) {
    stride_ = std::max<int64_t>(64, source.key_bytes);
    lines_ = head_size * source.key_bytes / stride_;
    start(source.keys + begin, source.keys + end);
  }
  void values_of(const SplitSource& source, int64_t begin, int64_t end) {
    stride_ = 64;
    lines_ = kPieceKeys * source.value_bytes / stride_;
    start(source.values + begin, source.values + end);
  }
  // Asks for two lines, or does nothing of use when all have been asked for: no branch that fails.
  KV_INLINE void step() {
    __builtin_prefetch(at_);
    __builtin_prefetch(at_ + stride_);
    at_ += 2 * stride_;
    left_ -= 2;
    if (left_ <= 0) {
      at_ = *next_;
      left_ = lines_;
      next_ += next_ != last_;
    }
  }

 private:
  void start(const char* const* begin, const char* const* end) {
    if (begin >= end) return;
    at_ = *begin;
    left_ = lines_;
    last_ = end - 1;
    next_ = begin == last_ ? begin : begin + 1;
  }

  const char* at_ = reinterpret_cast<const char*>(this);  // until there is something to ask for
  int64_t stride_ = 0, lines_ = 0, left_ = INT64_MAX;
  const char* const* next_ = nullptr;
  const char* const* last_ = nullptr;
};

}  // namespace kvserve
