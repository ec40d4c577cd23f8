// The tiles of attention_block.h.
#include "attention_block.h"

#include <algorithm>

#include "vmath.h"

namespace kvserve {
namespace {

// A tile's rows and vectors; its sums fill the registers.
#if defined(KVSERVE_AVX512)
constexpr int kTileRows = 6, kTileVectors = 4;
#elif defined(KVSERVE_AVX2)
constexpr int kTileRows = 6, kTileVectors = 2;
#else
constexpr int kTileRows = 4, kTileVectors = 2;
#endif
constexpr int64_t kPieceVectors = kPieceKeys / W;
constexpr int64_t kValueTileKeys = 128;  // their values stay in the first cache for all rows

// ---- scores ----

// p[row][key] = q[row] . key, for V vectors of keys from `vector` on.
template <int Format, int R, int V>
void score_tile(const AttentionBlock& block, const SplitSource& source, int64_t row,
                int64_t vector) {
  F sums[R][V] = {};
  const int64_t q_stride = block.width(), head_size = block.head_size;
  const int64_t key_bytes = source.key_bytes;
  const float* q = block.q + row * q_stride;
  const char* at[V];
  KV_UNROLL
  for (int v = 0; v < V; ++v)
    at[v] = source.keys[(vector + v) / kPieceVectors] +
            (vector + v) % kPieceVectors * W * element_bytes(Format);
  for (int64_t d = 0; d < head_size; ++d) {
    F keys[V];
    KV_UNROLL
    for (int v = 0; v < V; ++v) keys[v] = load_elements<Format>(at[v] + d * key_bytes);
    KV_UNROLL
    for (int r = 0; r < R; ++r) {
      const F x = set1(q[r * q_stride + d]);
      KV_UNROLL
      for (int v = 0; v < V; ++v) sums[r][v] = fma(keys[v], x, sums[r][v]);
    }
  }
  float* p = block.p + row * kSplitKeys + vector * W;
  KV_UNROLL
  for (int r = 0; r < R; ++r)
    KV_UNROLL
    for (int v = 0; v < V; ++v) store(p + r * kSplitKeys + v * W, sums[r][v]);
}

template <int Format, int V, int Most = kTileRows>
void score_rows(const AttentionBlock& block, const SplitSource& source, int64_t row,
                int64_t vector) {
  if constexpr (Most > 0) {
    for (; block.rows() - row >= Most; row += Most)
      score_tile<Format, Most, V>(block, source, row, vector);
    if (row < block.rows()) score_rows<Format, V, Most - 1>(block, source, row, vector);
  }
}

template <int Format>
void score(const AttentionBlock& block, const SplitSource& source, Range range) {
  const int64_t end = ceil_div(range.end, W);
  for (int64_t vector = range.begin / W; vector < end;) {
    const int64_t left = end - vector;
    const int64_t vectors = left >= kTileVectors ? kTileVectors : left >= 2 ? 2 : 1;
    if (vectors == kTileVectors) score_rows<Format, kTileVectors>(block, source, 0, vector);
    else if (vectors == 2) score_rows<Format, 2>(block, source, 0, vector);
    else score_rows<Format, 1>(block, source, 0, vector);
    vector += vectors;
  }
}

// ---- scales ----

// Multiplies what stands for the keys of a range, in a row of p, by their scales.
void scale_row(float* p, Range range, const uint16_t* const* scales) {
  for (int64_t vector = range.begin / W; vector <= (range.end - 1) / W; ++vector) {
    const uint16_t* at = scales[vector / kPieceVectors] + vector % kPieceVectors * W;
    store(p + vector * W, load(p + vector * W) * load_bf16(at));
  }
}

void scale_rows(const AttentionBlock& block, const uint16_t* const* scales) {
  for (int64_t row = 0; row < block.rows(); ++row) {
    const Range range = block.range_of(row / block.group);
    if (!range.empty()) scale_row(block.p + row * kSplitKeys, range, scales);
  }
}

// ---- softmax ----

// Hides the keys of a vector that a row does not see.
KV_INLINE F hide(F score, int64_t vector, Range range) {
  I lane;
  for (int i = 0; i < W; ++i) lane[i] = i;
  lane = lane + set1(int32_t(vector * W));
  const I seen = (lane >= set1(int32_t(range.begin))) & (lane < set1(int32_t(range.end)));
  return seen ? score : set1(kMinusInfinity);
}

// Turns a row's scores s into cap tanh(s / cap).
void cap_scores(float* p, Range range, float cap) {
  const F inverse = set1(1.0f / cap);
  for (int64_t v = range.begin / W; v <= (range.end - 1) / W; ++v)
    store(p + v * W, tanh(load(p + v * W) * inverse) * set1(cap));
}

// The largest score that a row sees, the others hidden.
float find_largest(float* p, Range range) {
  const int64_t first = range.begin / W, last = (range.end - 1) / W;
  const F at_first = hide(load(p + first * W), first, range);
  const F at_last = hide(load(p + last * W), last, range);
  F largest = max(at_first, at_last);
  for (int64_t v = first + 1; v < last; ++v) largest = max(largest, load(p + v * W));
  store(p + first * W, at_first);
  store(p + last * W, at_last);  // where both are one, they are the same
  return reduce_max(largest);
}

// Turns a row's scores into weights and returns their sum.
float weigh_row(float* p, Range range, float largest) {
  F total = {};
  for (int64_t v = range.begin / W; v <= (range.end - 1) / W; ++v) {
    const F weight = exp2_of_negative(load(p + v * W) - set1(largest));
    store(p + v * W, weight);
    total = total + weight;
  }
  return reduce_add(total);
}

// All maxima before all weights: a row's maximum is a chain of waits that others can fill.
void weigh(const AttentionBlock& block) {
  for (int64_t row = 0; row < block.rows(); ++row) {
    const Range range = block.range_of(row / block.group);
    if (block.cap > 0.0f && !range.empty())
      cap_scores(block.p + row * kSplitKeys, range, block.cap);
    block.max[row] =
        range.empty() ? kMinusInfinity : find_largest(block.p + row * kSplitKeys, range);
  }
  for (int64_t row = 0; row < block.rows(); ++row) {
    const Range range = block.range_of(row / block.group);
    block.sum[row] =
        range.empty() ? 0.0f : weigh_row(block.p + row * kSplitKeys, range, block.max[row]);
  }
}

// ---- values ----

// o[row] += sum over the keys of p[row][key] value[key], for V vectors of dimensions from d on.
template <int Format, int R, int V>
void add_tile(const AttentionBlock& block, const SplitSource& source, int64_t row, Range keys,
              int64_t d) {
  constexpr int64_t element = element_bytes(Format);
  const int64_t width = block.width(), value_bytes = source.value_bytes;
  float* o = block.o + row * width + d;
  const float* p = block.p + row * kSplitKeys;
  F sums[R][V];
  KV_UNROLL
  for (int r = 0; r < R; ++r)
    KV_UNROLL
    for (int v = 0; v < V; ++v) sums[r][v] = load(o + r * width + v * W);
  for (int64_t j = keys.begin; j < keys.end;) {
    const int64_t piece = j / kPieceKeys, end = std::min(keys.end, (piece + 1) * kPieceKeys);
    const char* at = source.values[piece] + j % kPieceKeys * value_bytes + d * element;
    for (; j < end; ++j, at += value_bytes) {
      F values[V];
      KV_UNROLL
      for (int v = 0; v < V; ++v) values[v] = load_elements<Format>(at + v * W * element);
      KV_UNROLL
      for (int r = 0; r < R; ++r) {
        const F x = set1(p[r * kSplitKeys + j]);
        KV_UNROLL
        for (int v = 0; v < V; ++v) sums[r][v] = fma(values[v], x, sums[r][v]);
      }
    }
  }
  KV_UNROLL
  for (int r = 0; r < R; ++r)
    KV_UNROLL
    for (int v = 0; v < V; ++v) store(o + r * width + v * W, sums[r][v]);
}

template <int Format, int Most = kTileRows>
void add_rows(const AttentionBlock& block, const SplitSource& source, int64_t row, int64_t end,
              Range keys) {
  if constexpr (Most > 0) {
    for (; end - row >= Most; row += Most) {
      int64_t d = 0;
      for (; d + kTileVectors * W <= block.width(); d += kTileVectors * W)
        add_tile<Format, Most, kTileVectors>(block, source, row, keys, d);
      for (; d < block.width(); d += W)
        add_tile<Format, Most, 1>(block, source, row, keys, d);
    }
    if (row < end) add_rows<Format, Most - 1>(block, source, row, end, keys);
  }
}

// The keys that one token sees and others do not.
template <int Format>
void add_of_token(const AttentionBlock& block, const SplitSource& source, int64_t token,
                  Range keys) {
  if (!keys.empty())
    add_rows<Format>(block, source, token * block.group, (token + 1) * block.group, keys);
}

// Only what a row sees is ever multiplied: zero times the NaN of another request is NaN.
template <int Format>
void add_values(const AttentionBlock& block, const SplitSource& source) {
  std::fill(block.o, block.o + block.rows() * block.width(), 0.0f);
  Range common{block.range_of(block.tokens - 1).begin, block.range_of(0).end};
  if (common.empty()) common = {kSplitKeys, kSplitKeys};
  for (int64_t token = 0; token < block.tokens; ++token) {
    const Range range = block.range_of(token);
    add_of_token<Format>(block, source, token,
                         {range.begin, std::min(range.end, common.begin)});
  }
  for (int64_t begin = common.begin; begin < common.end;) {
    const int64_t end = std::min(common.end, (begin / kValueTileKeys + 1) * kValueTileKeys);
    add_rows<Format>(block, source, 0, block.rows(), {begin, end});
    begin = end;
  }
  for (int64_t token = 0; token < block.tokens; ++token) {
    const Range range = block.range_of(token);
    add_of_token<Format>(block, source, token, {std::max(range.begin, common.end), range.end});
  }
}

template <int Format>
void attend_as(const AttentionBlock& block, const SplitSource& source) {
  const Range range{block.range_of(0).begin, block.range_of(block.tokens - 1).end};
  if (!range.empty()) score<Format>(block, source, range);
  if (source.is_scaled) scale_rows(block, source.key_scales);
  weigh(block);
  if (source.is_scaled) scale_rows(block, source.value_scales);
  add_values<Format>(block, source);
}

}  // namespace

int64_t rows_of_a_pass() { return kTileRows; }

void attend(const AttentionBlock& block, const SplitSource& source) {
  switch (source.format) {
    case KV_CACHE_INT8: return attend_as<KV_CACHE_INT8>(block, source);
    case KV_CACHE_BFLOAT16: return attend_as<KV_CACHE_BFLOAT16>(block, source);
    default: return attend_as<KV_CACHE_FLOAT32>(block, source);
  }
}

MergeFactors merge_factors(F old_max, F new_max) {
  // The floor keeps rows that saw nothing yet from -inf - -inf.
  const F largest = max(max(old_max, new_max), set1(-3.0e38f));
  return {largest, exp2_of_negative(old_max - largest), exp2_of_negative(new_max - largest)};
}

}  // namespace kvserve
