// Causal attention over the paged cache, for one flat ragged batch.
//
// Responsible for: which work items a batch is cut into (AttentionPlan), and one item's arithmetic.
//
// Per query the arithmetic is fixed by its own position alone.  Keys are taken in tiles of 32 and
// splits of 256, both at absolute positions; a split is an online softmax over its tiles in
// ascending order, and splits are merged in ascending order.  A prompt chunk lets an item hold many
// queries and walk all splits itself; a decode step gives every split its own item and merges
// afterwards.  The two differ in who computes what, never in the operations, so chunking, company,
// block placement and thread count leave every bit as it is.
//
// An item serves all query heads of one key/value head: keys and values are read once per group.
#pragma once

#include <cstdint>
#include <vector>

#include "kvserve.h"
#include "thread_pool.h"

namespace kvserve {

constexpr int64_t kTileKeys = 32;
constexpr int64_t kSplitKeys = 256;  // shared by all backends

struct AttentionItem {
  int64_t request;
  int64_t token_begin, token_end;  // rows of the flat batch
  int64_t position;                // of token_begin
  int64_t split_begin, split_end;
  int64_t partial;                 // first partial row to write; -1: the item finishes its queries
};

struct MergeItem {
  int64_t token;
  int64_t partial;  // first partial row; splits of one head are `stride` rows apart
  int64_t stride;
  int64_t splits;
};

// The cut of one batch for one window length; the same for every layer that has that window.
class AttentionPlan {
 public:
  void build(const kv_batch& batch, int64_t heads, int64_t kv_heads, int64_t window);

  std::vector<AttentionItem> items;  // each once per key/value head
  std::vector<MergeItem> merges;     // each once per key/value head too
  int64_t partial_rows = 0;
  int64_t window = 0;
};

// Memory for attention, grown when needed and kept between layers and steps.
class AttentionScratch {
 public:
  float* of_thread(int thread) { return memory_.data() + thread * thread_floats_; }
  float* partials() { return partials_.data(); }
  void reserve(int threads, int64_t thread_floats, int64_t partial_floats);

 private:
  int64_t thread_floats_ = 0;
  std::vector<float> memory_, partials_;
};

struct AttentionCall {
  const kv_cache_layer* cache;
  const kv_batch* batch;
  const float* q;  // (N, heads, head_size) with row stride q_stride
  int64_t q_stride;
  int64_t heads;
  float scale;
  float* out;
  int64_t out_stride;
};

void run_attention(ThreadPool& pool, const AttentionPlan& plan, AttentionScratch& scratch,
                   const AttentionCall& call);

}  // namespace kvserve
