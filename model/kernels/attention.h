// Causal attention over the paged cache, for one flat ragged batch.
//
// Responsible for: carrying out a plan (attention_plan.h) split by split (attention_block.h), and
// merging the splits.  Chunking, company, block placement and threads leave every bit as it is.
//
// An item serves all query heads of one key/value head: keys and values are read once per group.
#pragma once

#include <cstdint>

#include "attention_plan.h"
#include "buffer.h"
#include "kvserve.h"
#include "thread_pool.h"

namespace kvserve {

// Memory for attention, kept between layers and steps.
class AttentionScratch {
 public:
  float* of_thread(int thread) { return threads_ + thread * thread_floats_; }
  float* partials() { return partials_; }
  void reserve(int threads, int64_t thread_floats, int64_t partial_floats);

 private:
  int64_t thread_floats_ = 0;
  Buffer thread_memory_, partial_memory_;
  float *threads_ = nullptr, *partials_ = nullptr;
};

struct AttentionCall {
  const kv_cache_layer* cache;
  const kv_batch* batch;
  const float* q;  // (N, heads, head_size) with row stride q_stride
  int64_t q_stride;
  int64_t heads;
  float scale;
  float cap;           // 0: none
  const float* sinks;  // null: none
  float* out;
  int64_t out_stride;
};

void run_attention(ThreadPool& pool, const AttentionPlan& plan, AttentionScratch& scratch,
                   const AttentionCall& call);

}  // namespace kvserve
