// Which work items attention cuts a batch into.
//
// Responsible for: the cut alone; it knows lengths and heads, neither keys nor queries.
//
// Per query the arithmetic is fixed by its own position alone.  Keys are taken in splits of 256 at
// absolute positions, each split is a softmax of its own, and splits are merged in ascending order.
// An item of many tokens walks all its splits itself; a few tokens with a long past get an item per
// split, merged afterwards.  The two differ in who computes what, never in the operations.
#pragma once

#include <cstdint>
#include <vector>

#include "kvserve.h"

namespace kvserve {

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

// Tokens an item takes at most, when a key/value head serves `group` query heads.
int64_t tokens_per_item(int64_t group);

// The cut of one batch for one window length; the same for every layer that has that window.
class AttentionPlan {
 public:
  void build(const kv_batch& batch, int64_t heads, int64_t kv_heads, int64_t window);

  std::vector<AttentionItem> items;  // each once per key/value head
  std::vector<MergeItem> merges;     // each once per key/value head too
  int64_t partial_rows = 0;
  int64_t window = 0;

 private:
  void add_item(AttentionItem item, int64_t heads, bool walks_splits);
};

}  // namespace kvserve
