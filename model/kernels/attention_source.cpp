// Finding and widening a split's keys and values; see the header.
#include "attention_source.h"

namespace kvserve {
namespace {

template <bool IsBf16>
KV_INLINE float element_at(const char* row, int64_t i) {
  if (IsBf16) return bf16_to_float(reinterpret_cast<const uint16_t*>(row)[i]);
  return reinterpret_cast<const float*>(row)[i];
}

template <bool IsBf16>
void widen_keys(const char* from, int64_t key_bytes, int64_t head_size, float* to,
                int64_t to_stride) {
  for (int64_t d = 0; d < head_size; ++d, from += key_bytes, to += to_stride)
    for (int64_t i = 0; i < kPieceKeys; i += W)
      store(to + i, load_element<IsBf16>(from + i * (IsBf16 ? 2 : 4)));
}

// One key's values, filled up to whole vectors with zeros.
template <bool IsBf16>
void widen_values(const char* from, int64_t head_size, float* to, int64_t width) {
  int64_t d = 0;
  for (; d + W <= head_size; d += W)
    store(to + d, load_element<IsBf16>(from + d * (IsBf16 ? 2 : 4)));
  for (; d < width; ++d) to[d] = d < head_size ? element_at<IsBf16>(from, d) : 0.0f;
}

template <bool IsBf16>
void widen_all(const SplitSource& from, int64_t head_size, float* memory, SplitSource& to) {
  constexpr int64_t chunk_keys = kChunkPieces * kPieceKeys;
  const int64_t width = padded(head_size);
  to.key_bytes = chunk_keys * sizeof(float);
  to.value_bytes = width * sizeof(float);
  for (int64_t piece = from.first_piece(); piece < from.end_piece(); ++piece) {
    float* keys = memory + piece / kChunkPieces * chunk_keys * width +
                  piece % kChunkPieces * kPieceKeys;
    widen_keys<IsBf16>(from.keys[piece], from.key_bytes, head_size, keys, chunk_keys);
    to.keys[piece] = reinterpret_cast<const char*>(keys);
    float* values = memory + (kSplitKeys + piece * kPieceKeys) * width;
    to.values[piece] = reinterpret_cast<const char*>(values);
    const int64_t end = std::min(kPieceKeys, from.range.end - piece * kPieceKeys);
    for (int64_t i = std::max<int64_t>(0, from.range.begin - piece * kPieceKeys); i < end; ++i)
      widen_values<IsBf16>(from.values[piece] + i * from.value_bytes, head_size,
                           values + i * width, width);
  }
}

}  // namespace

SplitSource locate(const kv_cache_layer& cache, const int64_t* blocks, int64_t head, int64_t split,
                   Range range) {
  SplitSource source;
  source.range = range;
  source.is_bf16 = cache.is_bf16;
  source.key_bytes = cache.block_size * source.element();
  source.value_bytes = cache.head_size * source.element();
  const int block_bits = __builtin_ctz(cache.block_size);
  for (int64_t piece = source.first_piece(); piece < source.end_piece(); ++piece) {
    const int64_t key = split * kSplitKeys + piece * kPieceKeys;
    const int64_t offset = key & (cache.block_size - 1);
    const int64_t at = (blocks[key >> block_bits] * cache.kv_heads + head) * cache.block_size *
                       source.value_bytes;
    source.keys[piece] =
        static_cast<const char*>(cache.keys) + at + offset * source.element();
    source.values[piece] =
        static_cast<const char*>(cache.values) + at + offset * source.value_bytes;
  }
  return source;
}

int64_t widened_floats(int64_t head_size) { return 2 * kSplitKeys * padded(head_size); }

SplitSource widen(const SplitSource& from, int64_t head_size, float* memory) {
  SplitSource to = from;
  to.is_bf16 = false;
  if (from.is_bf16) widen_all<true>(from, head_size, memory, to);
  else widen_all<false>(from, head_size, memory, to);
  return to;
}

}  // namespace kvserve
