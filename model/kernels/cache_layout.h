// Sizes in the cache, by the format of its numbers; see kv_cache_layer.
#pragma once

#include <cstdint>

#include "kvserve.h"

namespace kvserve {

constexpr int64_t element_bytes(int32_t format) {
  return format == KV_CACHE_INT8 ? 1 : format == KV_CACHE_BFLOAT16 ? 2 : 4;
}

// Of the keys, or of the values, of one head in one block.
constexpr int64_t head_bytes(const kv_cache_layer& cache) {
  const int64_t scale = cache.format == KV_CACHE_INT8 ? sizeof(uint16_t) : 0;
  return cache.block_size * (cache.head_size * element_bytes(cache.format) + scale);
}

}  // namespace kvserve
