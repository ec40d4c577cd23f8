// Finding and widening a split's keys and values; see the header.
#include "attention_source.h"

namespace kvserve {
namespace {

template <int Format>
KV_INLINE float element_at(const char* row, int64_t i) {
  if constexpr (Format == KV_CACHE_INT8) return reinterpret_cast<const int8_t*>(row)[i];
  else if constexpr (Format == KV_CACHE_BFLOAT16)
    return bf16_to_float(reinterpret_cast<const uint16_t*>(row)[i]);
  else return reinterpret_cast<const float*>(row)[i];
}

template <int Format>
void widen_keys(const char* from, int64_t key_bytes, int64_t head_size, float* to,
                int64_t to_stride) {
  for (int64_t d = 0; d < head_size; ++d, from += key_bytes, to += to_stride)
    for (int64_t i = 0; i < kPieceKeys; i += W)
      store(to + i, load_elements<Format>(from + i * element_bytes(Format)));
}

// One key's values, filled up to whole vectors with zeros.
template <int Format>
void widen_values(const char* from, int64_t head_size, float* to, int64_t width) {
  int64_t d = 0;
  for (; d + W <= head_size; d += W)
    store(to + d, load_elements<Format>(from + d * element_bytes(Format)));
  for (; d < width; ++d) to[d] = d < head_size ? element_at<Format>(from, d) : 0.0f;
}

template <int Format>
void widen_all(const SplitSource& from, int64_t head_size, float* memory, SplitSource& to) {
  constexpr int64_t chunk_keys = kChunkPieces * kPieceKeys;
  const int64_t width = padded(head_size);
  to.key_bytes = chunk_keys * sizeof(float);
  to.value_bytes = width * sizeof(float);
  for (int64_t piece = from.first_piece(); piece < from.end_piece(); ++piece) {
    float* keys = memory + piece / kChunkPieces * chunk_keys * width +
                  piece % kChunkPieces * kPieceKeys;
    widen_keys<Format>(from.keys[piece], from.key_bytes, head_size, keys, chunk_keys);
    to.keys[piece] = reinterpret_cast<const char*>(keys);
    float* values = memory + (kSplitKeys + piece * kPieceKeys) * width;
    to.values[piece] = reinterpret_cast<const char*>(values);
    const int64_t end = std::min(kPieceKeys, from.range.end - piece * kPieceKeys);
    for (int64_t i = std::max<int64_t>(0, from.range.begin - piece * kPieceKeys); i < end; ++i)
      widen_values<Format>(from.values[piece] + i * from.value_bytes, head_size,
                           values + i * width, width);
  }
}

}  // namespace

SplitSource locate(const kv_cache_layer& cache, const int64_t* blocks, int64_t head, int64_t split,
                   Range range) {
  SplitSource source;
  source.range = range;
  const int64_t element = element_bytes(cache.format);
  source.format = cache.format;
  source.is_scaled = cache.format == KV_CACHE_INT8;
  source.key_bytes = cache.block_size * element;
  source.value_bytes = cache.head_size * element;
  const int64_t numbers = cache.block_size * source.value_bytes, bytes = head_bytes(cache);
  const int block_bits = __builtin_ctz(cache.block_size);
  for (int64_t piece = source.first_piece(); piece < source.end_piece(); ++piece) {
    const int64_t key = split * kSplitKeys + piece * kPieceKeys;
    const int64_t offset = key & (cache.block_size - 1);
    const int64_t at = (blocks[key >> block_bits] * cache.kv_heads + head) * bytes;
    const char* keys = static_cast<const char*>(cache.keys) + at;
    const char* values = static_cast<const char*>(cache.values) + at;
    source.keys[piece] = keys + offset * element;
    source.values[piece] = values + offset * source.value_bytes;
    source.key_scales[piece] = reinterpret_cast<const uint16_t*>(keys + numbers) + offset;
    source.value_scales[piece] = reinterpret_cast<const uint16_t*>(values + numbers) + offset;
  }
  return source;
}

int64_t widened_floats(int64_t head_size) { return 2 * kSplitKeys * padded(head_size); }

SplitSource widen(const SplitSource& from, int64_t head_size, float* memory) {
  SplitSource to = from;
  to.format = KV_CACHE_FLOAT32;
  switch (from.format) {
    case KV_CACHE_INT8: widen_all<KV_CACHE_INT8>(from, head_size, memory, to); break;
    case KV_CACHE_BFLOAT16: widen_all<KV_CACHE_BFLOAT16>(from, head_size, memory, to); break;
    default: widen_all<KV_CACHE_FLOAT32>(from, head_size, memory, to);
  }
  return to;
}

}  // namespace kvserve
