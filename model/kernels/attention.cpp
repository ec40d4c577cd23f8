// Walking the items of a plan; see attention.h.
#include "attention.h"

#include <algorithm>
#include <cstring>

#include "attention_block.h"
#include "matrix.h"
#include "pool_handle.h"
#include "simd.h"
#include "vmath.h"

namespace kvserve {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr int64_t kBlockRows = 24;  // their weights stay in the first cache
constexpr int64_t kPiecesPerThread = 8;

int64_t tokens_per_block(int64_t group) { return std::max<int64_t>(1, kBlockRows / group); }

// One item's memory.  Rows are (token, head of the group), token first.
struct ItemState {
  float* copy;                     // one split, widened
  float *q, *total;                // (rows, width)
  float *total_max, *total_sum;    // (rows)
  float *p, *o, *max, *sum;        // of one block

  static int64_t floats(int64_t group, int64_t head_size) {
    const int64_t rows = padded(tokens_per_item(group) * group);
    const int64_t block_rows = padded(tokens_per_block(group) * group);
    const int64_t width = padded(head_size);
    return widened_floats(head_size) + rows * (2 * width + 2) +
           block_rows * (kSplitKeys + width + 2);
  }

  ItemState(float* memory, int64_t group, int64_t head_size) {
    const int64_t rows = padded(tokens_per_item(group) * group);
    const int64_t block_rows = padded(tokens_per_block(group) * group);
    const int64_t width = padded(head_size);
    const auto take = [&memory](int64_t n) {
      float* at = memory;
      memory += n;
      return at;
    };
    copy = take(widened_floats(head_size));
    q = take(rows * width);
    total = take(rows * width);
    total_max = take(rows);
    total_sum = take(rows);
    p = take(block_rows * kSplitKeys);
    o = take(block_rows * width);
    max = take(block_rows);
    sum = take(block_rows);
  }
};

// total += one split, for rows from the first on, both relative to their own maximum.
void merge_rows(int64_t rows, int64_t width, const float* o, const float* max, const float* sum,
                float* total, float* total_max, float* total_sum) {
  for (int64_t row = 0; row < rows; row += W) {
    const int64_t n = rows - row;
    const MergeFactors f = merge_factors(load_upto(total_max + row, n), load_upto(max + row, n));
    store_upto(total_max + row, f.max, n);
    store_upto(total_sum + row, fma(load_upto(sum + row, n), f.new_factor,
                                    load_upto(total_sum + row, n) * f.old_factor), n);
    for (int64_t i = 0; i < std::min<int64_t>(W, n); ++i) {
      const F old_factor = set1(f.old_factor[i]), new_factor = set1(f.new_factor[i]);
      for (int64_t d = (row + i) * width; d < (row + i + 1) * width; d += W)
        store(total + d, fma(load(o + d), new_factor, load(total + d) * old_factor));
    }
  }
}

// The values of a row over the sum of its weights, in which a sink takes part.
void write_out(const AttentionCall& call, const float* total, float max, float sum, int64_t token,
               int64_t head) {
  const int64_t head_size = call.cache->head_size;
  float* out = call.out + token * call.out_stride + head * head_size;
  F divisor = set1(sum), factor = set1(1.0f);
  if (call.sinks) {
    const MergeFactors f = merge_factors(set1(max), set1(call.sinks[head] * kLog2E));
    divisor = fma(divisor, f.old_factor, f.new_factor);
    factor = f.old_factor;
  }
  for (int64_t d = 0; d < head_size; d += W)
    store_upto(out + d, load(total + d) * factor / divisor, head_size - d);
}

int64_t partial_width(int64_t head_size) { return padded(head_size) + 16; }

// One item and key/value head.
class ItemRun {
 public:
  ItemRun(const AttentionCall& call, const AttentionPlan& plan, AttentionScratch& scratch,
          int64_t unit)
      : call_(call), cache_(*call.cache), window_(plan.window), scratch_(scratch),
        item_(plan.items[unit / call.cache->kv_heads]), head_(unit % call.cache->kv_heads),
        group_(call.heads / call.cache->kv_heads), width_(padded(call.cache->head_size)) {}

  void run(int thread) const {
    const ItemState state(scratch_.of_thread(thread), group_, cache_.head_size);
    load_queries(state);
    std::fill(state.total, state.total + rows() * width_, 0.0f);
    std::fill(state.total_max, state.total_max + rows(), kMinusInfinity);
    std::fill(state.total_sum, state.total_sum + rows(), 0.0f);
    for (int64_t split = item_.split_begin; split < item_.split_end; ++split)
      run_split(state, split);
    if (item_.partial >= 0) return;
    for (int64_t row = 0; row < rows(); ++row)
      write_out(call_, state.total + row * width_, state.total_max[row], state.total_sum[row],
                item_.token_begin + row / group_, head_ * group_ + row % group_);
  }

 private:
  int64_t tokens() const { return item_.token_end - item_.token_begin; }
  int64_t rows() const { return tokens() * group_; }

  void load_queries(const ItemState& state) const {
    const F scale = set1(call_.scale * kLog2E);
    const int64_t head_size = cache_.head_size;
    for (int64_t row = 0; row < rows(); ++row) {
      const float* source = call_.q + (item_.token_begin + row / group_) * call_.q_stride +
                            (head_ * group_ + row % group_) * head_size;
      float* q = state.q + row * width_;
      for (int64_t d = 0; d < head_size; d += W)
        store_upto(q + d, load_upto(source + d, head_size - d) * scale, head_size - d);
    }
  }

  SplitSource find(int64_t split) const {
    const int64_t start = split * kSplitKeys;
    const int64_t last = item_.position + tokens() - 1;
    return locate(cache_, call_.batch->block_table + item_.request * call_.batch->max_blocks,
                  head_, split,
                  {visible(item_.position - start, window_).begin,
                   visible(last - start, window_).end});
  }

  void run_split(const ItemState& state, int64_t split) const {
    // A copy pays if more queries read it than two passes of scores take.
    const bool copies = rows() > 2 * rows_of_a_pass() || cache_.head_size % 16;
    SplitSource source = find(split);
    if (copies) source = widen(source, cache_.head_size, state.copy);
    const int64_t step = tokens_per_block(group_);
    for (int64_t token = 0; token < tokens(); token += step) {
      const AttentionBlock block{std::min(step, tokens() - token), group_, cache_.head_size,
                                 item_.position + token - split * kSplitKeys, window_,
                                 call_.cap * kLog2E,
                                 state.q + token * group_ * width_, state.p, state.o, state.max,
                                 state.sum};
      attend(block, source);
      finish_block(state, block, token * group_);
    }
  }

  // Hands on a block's sums; `row` is its first of the item.
  void finish_block(const ItemState& state, const AttentionBlock& block, int64_t row) const {
    if (item_.partial < 0)
      return merge_rows(block.rows(), width_, block.o, block.max, block.sum,
                        state.total + row * width_, state.total_max + row,
                        state.total_sum + row);
    for (int64_t i = 0; i < block.rows(); ++i) {
      const int64_t token = (row + i) / group_;
      const int64_t at = item_.partial + token * call_.heads + head_ * group_ + (row + i) % group_;
      float* partial = scratch_.partials() + at * partial_width(cache_.head_size);
      partial[0] = block.max[i];
      partial[1] = block.sum[i];
      std::memcpy(partial + 16, block.o + i * width_, sizeof(float) * width_);
    }
  }

  const AttentionCall& call_;
  const kv_cache_layer& cache_;
  const int64_t window_;
  AttentionScratch& scratch_;
  const AttentionItem& item_;
  const int64_t head_, group_, width_;
};

void run_merge(const AttentionCall& call, const MergeItem& item, int64_t head,
               AttentionScratch& scratch, int thread) {
  const int64_t head_size = call.cache->head_size, width = padded(head_size);
  float* total = scratch.of_thread(thread);
  std::fill(total, total + width, 0.0f);
  float total_max = kMinusInfinity, total_sum = 0.0f;
  for (int64_t split = 0; split < item.splits; ++split) {
    const float* partial = scratch.partials() +
                           (item.partial + split * item.stride + head) * partial_width(head_size);
    merge_rows(1, width, partial + 16, partial, partial + 1, total, &total_max, &total_sum);
  }
  write_out(call, total, total_max, total_sum, item.token, head);
}

}  // namespace

void AttentionScratch::reserve(int threads, int64_t thread_floats, int64_t partial_floats) {
  thread_floats_ = padded(thread_floats);
  threads_ = thread_memory_.reserve(threads * thread_floats_);
  partials_ = partial_memory_.reserve(partial_floats);
}

void run_attention(ThreadPool& pool, const AttentionPlan& plan, AttentionScratch& scratch,
                   const AttentionCall& call) {
  const int64_t head_size = call.cache->head_size, kv_heads = call.cache->kv_heads;
  const int64_t group = call.heads / kv_heads;
  scratch.reserve(pool.size(), ItemState::floats(group, head_size),
                  plan.partial_rows * partial_width(head_size));
  // All heads of an item lie side by side in memory: one thread reads on where the processor's own
  // prefetching has begun, if there is enough to do for all.
  const int64_t items = static_cast<int64_t>(plan.items.size());
  const int64_t units = items >= kPiecesPerThread * pool.size() ? kv_heads : 1;
  pool.run(items * kv_heads / units, [&](int64_t piece, int thread) {
    for (int64_t unit = piece * units; unit < (piece + 1) * units; ++unit)
      ItemRun(call, plan, scratch, unit).run(thread);
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
                  const float* q, int64_t q_stride, int64_t heads, float scale, float cap,
                  const float* sinks, int64_t window, float* out, int64_t out_stride) {
  PoolCall call(pool);
  AttentionPlan plan;
  AttentionScratch scratch;
  plan.build(*batch, heads, cache->kv_heads, window);
  run_attention(*call, plan, scratch,
                {cache, batch, q, q_stride, heads, scale, cap, sinks, out, out_stride});
}
