// The arithmetic of attention.h.
#include "attention.h"

#include <algorithm>

#include "matrix.h"
#include "pool_handle.h"
#include "simd.h"
#include "vmath.h"

#define KV_UNROLL _Pragma("GCC unroll 32")

namespace kvserve {
namespace {

constexpr int kKeyVectors = kTileKeys / W;
#if defined(KVSERVE_AVX512)
constexpr int kScoreQueries = 8, kValueQueries = 4, kValueVectors = 4;
#elif defined(KVSERVE_AVX2)
constexpr int kScoreQueries = 2, kValueQueries = 2, kValueVectors = 4;
#else
constexpr int kScoreQueries = 1, kValueQueries = 2, kValueVectors = 4;
#endif

constexpr int64_t kItemQueries = 48;  // query rows an item aims at: its state stays in the cache
constexpr int64_t kItemTokens = 16;

int64_t tokens_per_item(int64_t group) {
  return std::max<int64_t>(1, std::min(kItemTokens, kItemQueries / group));
}

int64_t padded(int64_t n) { return ceil_div(n, 16) * 16; }

// One item's memory.  Rows are (token, head of the group), token first.
struct State {
  int64_t rows, head_size, width;  // width: head_size in whole vectors
  float *keys_t, *values;          // (head_size, 32) and (32, width): one tile
  float *q, *o, *total;            // (rows, ...): scaled queries, one split's sum, all splits' sum
  float *p;                        // (rows, 32)
  float *max, *next_max, *alpha, *sum, *total_max, *total_sum;  // (rows)

  static int64_t floats(int64_t rows, int64_t head_size) {
    const int64_t width = padded(head_size);
    return kTileKeys * head_size + kTileKeys * width +
           padded(rows) * (padded(head_size) + 2 * width + kTileKeys + 6);
  }

  State(float* memory, int64_t rows, int64_t head_size)
      : rows(rows), head_size(head_size), width(padded(head_size)) {
    const auto take = [&memory](int64_t n) {
      float* at = memory;
      memory += n;
      return at;
    };
    const int64_t r = padded(rows);
    keys_t = take(kTileKeys * head_size);
    values = take(kTileKeys * width);
    q = take(r * padded(head_size));
    o = take(r * width);
    total = take(r * width);
    p = take(r * kTileKeys);
    max = take(r);
    next_max = take(r);
    alpha = take(r);
    sum = take(r);
    total_max = take(r);
    total_sum = take(r);
  }
};

// A tile's keys [begin, end) of 32, seen from some query.
struct Range {
  int64_t begin, end;
  bool operator==(const Range& other) const { return begin == other.begin && end == other.end; }
};

Range visible(int64_t position, int64_t window, int64_t tile_start) {
  const int64_t low = window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
  return {std::max<int64_t>(0, low - tile_start),
          std::min<int64_t>(kTileKeys, position + 1 - tile_start)};
}

// ---- where a tile lies ----

// A tile's keys and values of one head, as vectors of W keys and as rows.  Inside a block the keys
// of a head stand by dimension (head_size, block_size), its values by token (block_size,
// head_size): scores take W neighbouring keys at a time, outputs W neighbouring dimensions.
struct TileSource {
  const char* keys[kKeyVectors];    // dimension 0 of W neighbouring keys; the next one is
  int64_t key_bytes;                // so many bytes further
  const char* values[kKeyVectors];  // the first of W neighbouring keys' rows,
  int64_t value_bytes;              // so many bytes apart
};

// Vectors that no token sees repeat a neighbour's address, so that only blocks of the request are
// read.
void locate(const kv_cache_layer& cache, const int64_t* blocks, int64_t head, int64_t tile_start,
            Range range, TileSource& tile) {
  const int64_t element = cache.is_bf16 ? 2 : 4;
  const int64_t head_bytes = int64_t{cache.block_size} * cache.head_size * element;
  tile.key_bytes = cache.block_size * element;
  tile.value_bytes = cache.head_size * element;
  const int64_t first = range.begin / W, last = (range.end - 1) / W;
  for (int64_t v = 0; v < kKeyVectors; ++v) {
    const int64_t key = tile_start + std::min(std::max(v, first), last) * W;
    const int64_t offset = key & (cache.block_size - 1);
    const int64_t at =
        (blocks[key / cache.block_size] * cache.kv_heads + head) * head_bytes;
    tile.keys[v] = static_cast<const char*>(cache.keys) + at + offset * element;
    tile.values[v] = static_cast<const char*>(cache.values) + at + offset * tile.value_bytes;
  }
}

// Asks for a tile before it is needed: blocks lie apart, too far for the processor to guess them.
void prefetch(const TileSource& tile, int64_t head_size, int64_t element) {
  const int64_t bytes = W * element;  // of one dimension of one vector of keys
  for (int v = 0; v < kKeyVectors; ++v) {
    for (int64_t d = 0; d < head_size; d += std::max<int64_t>(1, 64 / tile.key_bytes))
      __builtin_prefetch(tile.keys[v] + d * tile.key_bytes);
    for (int64_t at = 0; at < head_size * bytes; at += 64) __builtin_prefetch(tile.values[v] + at);
  }
}

template <bool IsBf16>
KV_INLINE F load_element(const char* at) {
  if (IsBf16) return load_bf16(reinterpret_cast<const uint16_t*>(at));
  return load(reinterpret_cast<const float*>(at));
}

// Widens a tile once for an item of many queries, which then reads the copy.
template <bool IsBf16>
void widen_tile(const TileSource& from, Range range, State& s, TileSource& to) {
  for (int64_t d = 0; d < s.head_size; ++d)
    KV_UNROLL
    for (int v = 0; v < kKeyVectors; ++v)
      store(s.keys_t + d * kTileKeys + v * W,
            load_element<IsBf16>(from.keys[v] + d * from.key_bytes));
  for (int64_t j = range.begin; j < range.end; ++j) {
    const char* row = from.values[j / W] + j % W * from.value_bytes;
    float* out = s.values + j * s.width;
    int64_t d = 0;
    for (; d + W <= s.head_size; d += W)
      store(out + d, load_element<IsBf16>(row + d * (IsBf16 ? 2 : 4)));
    for (; d < s.width; ++d) {
      if (d >= s.head_size) out[d] = 0.0f;
      else if (IsBf16) out[d] = bf16_to_float(reinterpret_cast<const uint16_t*>(row)[d]);
      else out[d] = reinterpret_cast<const float*>(row)[d];
    }
  }
  for (int v = 0; v < kKeyVectors; ++v) {
    to.keys[v] = reinterpret_cast<const char*>(s.keys_t + v * W);
    to.values[v] = reinterpret_cast<const char*>(s.values + v * W * s.width);
  }
  to.key_bytes = kTileKeys * sizeof(float);
  to.value_bytes = s.width * sizeof(float);
}

// ---- one tile ----

// p[row][j] = q[row] . key[j], dimensions in ascending order.
template <bool IsBf16, int R>
void score_rows(const State& s, const TileSource& tile, int64_t row) {
  F sums[R][kKeyVectors] = {};
  const int64_t q_stride = padded(s.head_size);
  const float* q = s.q + row * q_stride;
  const char* at[kKeyVectors];
  KV_UNROLL
  for (int v = 0; v < kKeyVectors; ++v) at[v] = tile.keys[v];
  for (int64_t d = 0; d < s.head_size; ++d) {
    F keys[kKeyVectors];
    KV_UNROLL
    for (int v = 0; v < kKeyVectors; ++v) {
      keys[v] = load_element<IsBf16>(at[v]);
      at[v] += tile.key_bytes;
    }
    KV_UNROLL
    for (int r = 0; r < R; ++r) {
      const F x = set1(q[r * q_stride + d]);
      KV_UNROLL
      for (int v = 0; v < kKeyVectors; ++v) sums[r][v] = fma(keys[v], x, sums[r][v]);
    }
  }
  KV_UNROLL
  for (int r = 0; r < R; ++r)
    KV_UNROLL
    for (int v = 0; v < kKeyVectors; ++v) store(s.p + (row + r) * kTileKeys + v * W, sums[r][v]);
}

template <bool IsBf16, int Most>
void score_all(const State& s, const TileSource& tile, int64_t row, int64_t rows) {
  if constexpr (Most > 0) {
    for (; rows >= Most; row += Most, rows -= Most) score_rows<IsBf16, Most>(s, tile, row);
    if (rows > 0) score_all<IsBf16, Most - 1>(s, tile, row, rows);
  }
}

// The lane numbers of the tile's v-th vector.
KV_INLINE I lane_numbers(int v) {
  I lanes;
  for (int i = 0; i < W; ++i) lanes[i] = i;
  return lanes + set1(int32_t(v * W));
}

// Hides what the row may not see and finds the new maximum.
void mask_row(State& s, int64_t row, Range range) {
  float* p = s.p + row * kTileKeys;
  F largest = set1(kMinusInfinity);
  for (int v = 0; v < kKeyVectors; ++v) {
    const I lane = lane_numbers(v);
    const I seen = (lane >= set1(int32_t(range.begin))) & (lane < set1(int32_t(range.end)));
    const F score = seen ? load(p + v * W) : set1(kMinusInfinity);
    store(p + v * W, score);
    largest = max(largest, score);
  }
  s.next_max[row] = std::max(s.max[row], reduce_max(largest));
}

void exponentiate_row(State& s, int64_t row) {
  float* p = s.p + row * kTileKeys;
  const F shift = set1(s.next_max[row]);
  F total = {};
  for (int v = 0; v < kKeyVectors; ++v) {
    const F e = exp(load(p + v * W) - shift);
    store(p + v * W, e);
    total = total + e;
  }
  s.sum[row] = s.sum[row] * s.alpha[row] + reduce_add(total);
  s.max[row] = s.next_max[row];
}

// o[row] = o[row] * alpha + sum over the range of p[j] value[j], keys in ascending order.
template <bool IsBf16, int R, int V>
void add_values(State& s, const TileSource& tile, int64_t row, Range range, int64_t d) {
  F sums[R][V];
  KV_UNROLL
  for (int r = 0; r < R; ++r)
    KV_UNROLL
    for (int v = 0; v < V; ++v)
      sums[r][v] = load(s.o + (row + r) * s.width + d + v * W) * set1(s.alpha[row + r]);
  constexpr int64_t element = IsBf16 ? 2 : 4;
  for (int64_t j = range.begin; j < range.end; ++j) {
    const char* at = tile.values[j / W] + j % W * tile.value_bytes + d * element;
    F values[V];
    KV_UNROLL
    for (int v = 0; v < V; ++v) values[v] = load_element<IsBf16>(at + v * W * element);
    KV_UNROLL
    for (int r = 0; r < R; ++r) {
      const F p = set1(s.p[(row + r) * kTileKeys + j]);
      KV_UNROLL
      for (int v = 0; v < V; ++v) sums[r][v] = fma(values[v], p, sums[r][v]);
    }
  }
  KV_UNROLL
  for (int r = 0; r < R; ++r)
    KV_UNROLL
    for (int v = 0; v < V; ++v) store(s.o + (row + r) * s.width + d + v * W, sums[r][v]);
}

template <bool IsBf16, int R>
void add_values_rows(State& s, const TileSource& tile, int64_t row, Range range) {
  int64_t d = 0;
  for (; d + kValueVectors * W <= s.width; d += kValueVectors * W)
    add_values<IsBf16, R, kValueVectors>(s, tile, row, range, d);
  for (; d < s.width; d += W) add_values<IsBf16, R, 1>(s, tile, row, range, d);
}

template <bool IsBf16, int Most>
void add_values_all(State& s, const TileSource& tile, int64_t row, int64_t rows, Range range) {
  if constexpr (Most > 0) {
    for (; rows >= Most; row += Most, rows -= Most)
      add_values_rows<IsBf16, Most>(s, tile, row, range);
    if (rows > 0) add_values_all<IsBf16, Most - 1>(s, tile, row, rows, range);
  }
}

// An item's queries over one tile.
template <bool IsBf16>
void run_tile(State& s, const TileSource& tile, int64_t group, int64_t position, int64_t tokens,
              int64_t window, int64_t tile_start) {
  // Tokens whose range is empty take no part; they are at one end, those that see something are
  // consecutive: late tokens may have moved their window past the tile, early ones end before it.
  int64_t first = 0, last = tokens;
  const auto range_of = [&](int64_t token) {
    return visible(position + token, window, tile_start);
  };
  const auto empty = [](Range r) { return r.begin >= r.end; };
  while (first < last && empty(range_of(first))) ++first;
  while (last > first && empty(range_of(last - 1))) --last;
  if (first == last) return;

  const int64_t row_begin = first * group, row_end = last * group;
  score_all<IsBf16, kScoreQueries>(s, tile, row_begin, row_end - row_begin);
  for (int64_t row = row_begin; row < row_end; ++row) mask_row(s, row, range_of(row / group));
  for (int64_t row = row_begin; row < row_end; row += W) {  // arrays are padded
    const int64_t n = row_end - row;
    store_upto(s.alpha + row, exp(load_upto(s.max + row, n) - load_upto(s.next_max + row, n)), n);
  }
  for (int64_t row = row_begin; row < row_end; ++row) exponentiate_row(s, row);
  // Neighbours with the same range share the values' loads.
  for (int64_t token = first; token < last;) {
    const Range range = range_of(token);
    int64_t end = token + 1;
    while (end < last && range_of(end) == range) ++end;
    add_values_all<IsBf16, kValueQueries>(s, tile, token * group, (end - token) * group, range);
    token = end;
  }
}

// ---- splits ----

// total += one split, both relative to their own maximum.
void merge(float* total, float* total_max, float* total_sum, const float* o, float max, float sum,
           int64_t width) {
  const float largest = std::max(*total_max, max);
  const F old_factor = exp(set1(*total_max - largest)), new_factor = exp(set1(max - largest));
  for (int64_t d = 0; d < width; d += W)
    store(total + d, fma(load(o + d), new_factor, load(total + d) * old_factor));
  *total_sum = sum * new_factor[0] + *total_sum * old_factor[0];
  *total_max = largest;
}

void write_out(const float* total, float sum, int64_t head_size, float* out) {
  for (int64_t d = 0; d < head_size; d += W)
    store_upto(out + d, load(total + d) / set1(sum), head_size - d);
}

int64_t partial_width(int64_t head_size) { return padded(head_size) + 16; }

void load_queries(const AttentionCall& call, const AttentionItem& item, int64_t head,
                  int64_t group, State& s) {
  const F scale = set1(call.scale);
  for (int64_t row = 0; row < s.rows; ++row) {
    const float* source = call.q + (item.token_begin + row / group) * call.q_stride +
                          (head * group + row % group) * s.head_size;
    float* q = s.q + row * padded(s.head_size);
    for (int64_t d = 0; d < s.head_size; d += W)
      store_upto(q + d, load_upto(source + d, s.head_size - d) * scale, s.head_size - d);
  }
}

void run_split(const AttentionCall& call, const AttentionItem& item, int64_t head, int64_t group,
               int64_t window, int64_t split, State& s) {
  std::fill(s.o, s.o + s.rows * s.width, 0.0f);
  std::fill(s.max, s.max + s.rows, kMinusInfinity);
  std::fill(s.sum, s.sum + s.rows, 0.0f);
  const kv_cache_layer& cache = *call.cache;
  const int64_t* blocks = call.batch->block_table + item.request * call.batch->max_blocks;
  const int64_t tokens = item.token_end - item.token_begin;
  const int64_t last = item.position + tokens - 1;
  const int64_t end = std::min((split + 1) * kSplitKeys, last + 1);
  // A copy pays if more queries read it than one pass of scores takes.
  const bool many = s.rows > kScoreQueries || s.head_size % W;
  const int64_t element = cache.is_bf16 ? 2 : 4;
  struct Next {
    int64_t start;
    Range range;
    TileSource source;
  };
  // Finds the first tile from `start` on that some token of the item sees, and asks for it.
  const auto find = [&](int64_t start, Next& next) {
    for (next.start = start; next.start < end; next.start += kTileKeys) {
      next.range = {visible(item.position, window, next.start).begin,
                    visible(last, window, next.start).end};
      if (next.range.begin >= next.range.end) continue;
      locate(cache, blocks, head, next.start, next.range, next.source);
      prefetch(next.source, cache.head_size, element);
      return;
    }
  };
  Next tiles[2];
  find(split * kSplitKeys, tiles[0]);
  for (int i = 0; tiles[i].start < end; i = 1 - i) {
    const Next& tile = tiles[i];
    find(tile.start + kTileKeys, tiles[1 - i]);
    TileSource copy;
    if (many && cache.is_bf16) widen_tile<true>(tile.source, tile.range, s, copy);
    else if (many) widen_tile<false>(tile.source, tile.range, s, copy);
    if (many || !cache.is_bf16)
      run_tile<false>(s, many ? copy : tile.source, group, item.position, tokens, window,
                      tile.start);
    else
      run_tile<true>(s, tile.source, group, item.position, tokens, window, tile.start);
  }
}

void run_item(const AttentionCall& call, const AttentionPlan& plan, const AttentionItem& item,
              int64_t head, AttentionScratch& scratch, int thread) {
  const int64_t head_size = call.cache->head_size, group = call.heads / call.cache->kv_heads;
  const int64_t rows = (item.token_end - item.token_begin) * group;
  State s(scratch.of_thread(thread), rows, head_size);
  load_queries(call, item, head, group, s);
  if (item.partial >= 0) {  // a single split
    run_split(call, item, head, group, plan.window, item.split_begin, s);
    const int64_t width = partial_width(head_size);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t at = item.partial + (row / group) * call.heads + head * group + row % group;
      float* partial = scratch.partials() + at * width;
      partial[0] = s.max[row];
      partial[1] = s.sum[row];
      std::memcpy(partial + 16, s.o + row * s.width, sizeof(float) * s.width);
    }
    return;
  }
  std::fill(s.total, s.total + rows * s.width, 0.0f);
  std::fill(s.total_max, s.total_max + rows, kMinusInfinity);
  std::fill(s.total_sum, s.total_sum + rows, 0.0f);
  for (int64_t split = item.split_begin; split < item.split_end; ++split) {
    run_split(call, item, head, group, plan.window, split, s);
    for (int64_t row = 0; row < rows; ++row)
      if (s.sum[row] != 0.0f)
        merge(s.total + row * s.width, s.total_max + row, s.total_sum + row, s.o + row * s.width,
              s.max[row], s.sum[row], s.width);
  }
  for (int64_t row = 0; row < rows; ++row)
    write_out(s.total + row * s.width, s.total_sum[row], head_size,
              call.out + (item.token_begin + row / group) * call.out_stride +
                  (head * group + row % group) * head_size);
}

void run_merge(const AttentionCall& call, const MergeItem& item, int64_t head,
               AttentionScratch& scratch, int thread) {
  const int64_t head_size = call.cache->head_size, width = padded(head_size);
  float* total = scratch.of_thread(thread);
  std::fill(total, total + width, 0.0f);
  float total_max = kMinusInfinity, total_sum = 0.0f;
  for (int64_t split = 0; split < item.splits; ++split) {
    const float* partial = scratch.partials() +
                           (item.partial + split * item.stride + head) * partial_width(head_size);
    if (partial[1] != 0.0f)
      merge(total, &total_max, &total_sum, partial + 16, partial[0], partial[1], width);
  }
  write_out(total, total_sum, head_size,
            call.out + item.token * call.out_stride + head * head_size);
}

}  // namespace

void AttentionPlan::build(const kv_batch& batch, int64_t heads, int64_t kv_heads,
                          int64_t window_keys) {
  items.clear();
  merges.clear();
  partial_rows = 0;
  window = window_keys;
  const int64_t step = tokens_per_item(heads / kv_heads);
  for (int64_t b = 0; b < batch.requests; ++b) {
    const int64_t begin = batch.query_starts[b], tokens = batch.query_starts[b + 1] - begin;
    const int64_t position = batch.key_lengths[b] - tokens;
    // Later tokens see more keys: the longest items go first.
    for (int64_t t = (tokens - 1) / step * step; t >= 0 && tokens > 0; t -= step) {
      const int64_t end = std::min(tokens, t + step);
      const int64_t first_key = window > 0 ? std::max<int64_t>(0, position + t - window + 1) : 0;
      AttentionItem item{b, begin + t, begin + end, position + t, first_key / kSplitKeys,
                         (position + end - 1) / kSplitKeys + 1, -1};
      const int64_t splits = item.split_end - item.split_begin;
      if (tokens > step || splits == 1) {
        items.push_back(item);
        continue;
      }
      const int64_t stride = (end - t) * heads;
      for (int64_t i = 0; i < end - t; ++i)
        merges.push_back({begin + t + i, partial_rows + i * heads, stride, splits});
      const int64_t split_end = item.split_end;
      for (int64_t split = item.split_begin; split < split_end; ++split) {
        item.split_begin = split;
        item.split_end = split + 1;
        item.partial = partial_rows;
        items.push_back(item);
        partial_rows += stride;
      }
    }
  }
}

void AttentionScratch::reserve(int threads, int64_t thread_floats, int64_t partial_floats) {
  thread_floats_ = padded(thread_floats);
  if (static_cast<int64_t>(memory_.size()) < threads * thread_floats_)
    memory_.resize(threads * thread_floats_);
  if (static_cast<int64_t>(partials_.size()) < partial_floats) partials_.resize(partial_floats);
}

void run_attention(ThreadPool& pool, const AttentionPlan& plan, AttentionScratch& scratch,
                   const AttentionCall& call) {
  const int64_t head_size = call.cache->head_size, kv_heads = call.cache->kv_heads;
  const int64_t group = call.heads / kv_heads;
  scratch.reserve(pool.size(), State::floats(tokens_per_item(group) * group, head_size),
                  plan.partial_rows * partial_width(head_size));
  pool.run(static_cast<int64_t>(plan.items.size()) * kv_heads, [&](int64_t piece, int thread) {
    run_item(call, plan, plan.items[piece / kv_heads], piece % kv_heads, scratch, thread);
  });
  const int64_t merges = static_cast<int64_t>(plan.merges.size());
  pool.run(merges * kv_heads, [&](int64_t piece, int thread) {
    for (int64_t i = 0; i < group; ++i)
      run_merge(call, plan.merges[piece / kv_heads], piece % kv_heads * group + i, scratch,
                thread);
  });
}

}  // namespace kvserve

using namespace kvserve;

void kv_attention(kv_pool* pool, const kv_cache_layer* cache, const kv_batch* batch,
                  const float* q, int64_t q_stride, int64_t heads, float scale, int64_t window,
                  float* out, int64_t out_stride) {
  PoolCall call(pool);
  AttentionPlan plan;
  AttentionScratch scratch;
  plan.build(*batch, heads, cache->kv_heads, window);
  run_attention(*call, plan, scratch,
                {cache, batch, q, q_stride, heads, scale, out, out_stride});
}
