// The cut of attention_plan.h.
#include "attention_plan.h"

#include <algorithm>

namespace kvserve {
namespace {

// Enough rows to pay for widening a split, few enough that their state stays in the cache.
constexpr int64_t kItemRows = 96;
constexpr int64_t kItemTokens = 32;

}  // namespace

int64_t tokens_per_item(int64_t group) {
  return std::max<int64_t>(1, std::min(kItemTokens, kItemRows / group));
}

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
      add_item({b, begin + t, begin + end, position + t, first_key / kSplitKeys,
                (position + end - 1) / kSplitKeys + 1, -1},
               heads, tokens > step);
    }
  }
}

void AttentionPlan::add_item(AttentionItem item, int64_t heads, bool walks_splits) {
  const int64_t splits = item.split_end - item.split_begin;
  if (walks_splits || splits == 1) {
    items.push_back(item);
    return;
  }
  const int64_t tokens = item.token_end - item.token_begin, stride = tokens * heads;
  for (int64_t i = 0; i < tokens; ++i)
    merges.push_back({item.token_begin + i, partial_rows + i * heads, stride, splits});
  const int64_t end = item.split_end;
  for (int64_t split = item.split_begin; split < end; ++split) {
    item.split_begin = split;
    item.split_end = split + 1;
    item.partial = partial_rows;
    items.push_back(item);
    partial_rows += stride;
  }
}

}  // namespace kvserve
