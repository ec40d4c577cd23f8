// The arithmetic of attention: some rows of queries against one split.
//
// Responsible for: scores, softmax and weighted values, in an order that a row's position alone
// decides.  Per row: a score is a sum over the dimensions in ascending order; weights are powers of
// two of what a score lies below the split's largest; their sum runs over every W-th key and then
// over the lanes; an output is a sum over the keys in ascending order.  Scales of an int8 cache are
// multiplied in once a key: into its score, and into its weight once that is in the sum.  How rows, keys and
// dimensions are tiled changes none of it.
#pragma once

#include <cstdint>

#include "attention_source.h"
#include "simd.h"

namespace kvserve {

// Rows (token, query head of the group), token first, and where they leave their results.
struct AttentionBlock {
  int64_t tokens, group, head_size;
  int64_t position;  // of the first token, counted from the split's first key
  int64_t window;
  float cap;         // soft cap of the scores, times log2(e) as they are; 0: none
  const float* q;    // (rows, width): scaled, and by log2(e) too
  float* p;          // (rows, kSplitKeys): scratch
  float* o;          // (rows, width): weighted values, not yet divided by their sum
  float* max;        // (rows): largest score; -inf where a row sees nothing
  float* sum;        // (rows): of the weights

  int64_t rows() const { return tokens * group; }
  int64_t width() const { return padded(head_size); }
  Range range_of(int64_t token) const { return visible(position + token, window); }
};

// Most rows that one pass of scores takes: fewer gain little from a widened copy.
int64_t rows_of_a_pass();

void attend(const AttentionBlock& block, const SplitSource& source);

// The factors that put two sums relative to their own maxima on their common one.
struct MergeFactors {
  F max, old_factor, new_factor;
};
MergeFactors merge_factors(F old_max, F new_max);

}  // namespace kvserve
