// The operations of elementwise.h, and their exported forms over many rows.
#include "elementwise.h"

#include <algorithm>
#include <cmath>

#include "matrix.h"
#include "pool_handle.h"
#include "simd.h"
#include "vmath.h"

namespace kvserve {

void rms_norm_row(const float* x, const float* weight, int64_t width, float epsilon, float* out) {
  F squares = {};
  for (int64_t i = 0; i < width; i += W) {
    const F v = load_upto(x + i, width - i);
    squares = fma(v, v, squares);
  }
  const float mean = reduce_add(squares) / static_cast<float>(width);
  const F scale = set1(1.0f / std::sqrt(mean + epsilon));
  for (int64_t i = 0; i < width; i += W) {
    const int64_t n = width - i;
    store_upto(out + i, load_upto(x + i, n) * scale * load_upto(weight + i, n), n);
  }
}

void layer_norm_row(const float* x, const float* weight, const float* bias, int64_t width,
                    float epsilon, float* out) {
  F total = {};
  for (int64_t i = 0; i < width; i += W) total = total + load_upto(x + i, width - i);
  const float mean = reduce_add(total) / static_cast<float>(width);
  F squares = {};
  for (int64_t i = 0; i < width; i += W) {
    const int64_t n = width - i;
    const F v = load_upto(x + i, n) - set1(mean);
    if (n >= W) {
      squares = fma(v, v, squares);
    } else {  // lanes past the end hold -mean, which is no deviation
      float lanes[W] = {};
      store_partial(lanes, v, n);
      squares = fma(load(lanes), load(lanes), squares);
    }
  }
  const float variance = reduce_add(squares) / static_cast<float>(width);
  const F scale = set1(1.0f / std::sqrt(variance + epsilon));
  for (int64_t i = 0; i < width; i += W) {
    const int64_t n = width - i;
    F y = (load_upto(x + i, n) - set1(mean)) * scale * load_upto(weight + i, n);
    if (bias) y = y + load_upto(bias + i, n);
    store_upto(out + i, y, n);
  }
}

namespace {
template <class Activation>
void activate(Activation act, const float* gate, const float* up, int64_t width, float* out) {
  for (int64_t i = 0; i < width; i += W) {
    const int64_t n = width - i;
    F y = act(load_upto(gate + i, n));
    if (up) y = y * load_upto(up + i, n);
    store_upto(out + i, y, n);
  }
}
}  // namespace

void activation_row(int32_t activation, const float* gate, const float* up, int64_t width,
                    float* out) {
  switch (activation) {
    case KV_SILU: return activate([](F x) { return silu(x); }, gate, up, width, out);
    case KV_GELU_TANH: return activate([](F x) { return gelu_tanh(x); }, gate, up, width, out);
    default: return activate([](F x) { return gelu_erf(x); }, gate, up, width, out);
  }
}

void rotate_head(float* x, int64_t half, const float* cosines, const float* sines) {
  for (int64_t i = 0; i < half; i += W) {
    const int64_t n = half - i;
    const F a = load_upto(x + i, n), b = load_upto(x + half + i, n);
    const F c = load_upto(cosines + i, n), s = load_upto(sines + i, n);
    store_upto(x + i, a * c - b * s, n);
    store_upto(x + half + i, b * c + a * s, n);
  }
}

void rotary_angles(int64_t position, const float* frequencies, int64_t half, float magnitude,
                   float* cosines, float* sines) {
  for (int64_t i = 0; i < half; ++i) {
    const double angle = static_cast<float>(position) * frequencies[i];
    cosines[i] = static_cast<float>(std::cos(angle)) * magnitude;
    sines[i] = static_cast<float>(std::sin(angle)) * magnitude;
  }
}

namespace {
// Writes x (n) to every `step`-th element from `at` on.
void write_strided(void* base, int32_t is_bf16, int64_t at, int64_t step, const float* x,
                   int64_t n) {
  if (is_bf16) {
    uint16_t* out = static_cast<uint16_t*>(base) + at;
    for (int64_t i = 0; i < n; ++i) out[i * step] = float_to_bf16(x[i]);
  } else {
    float* out = static_cast<float*>(base) + at;
    for (int64_t i = 0; i < n; ++i) out[i * step] = x[i];
  }
}
}  // namespace

void prefetch_cache_row(const kv_cache_layer& cache, int64_t slot) {
  const int64_t element = cache.is_bf16 ? 2 : 4;
  const int64_t head_bytes = int64_t{cache.block_size} * cache.head_size * element;
  const int64_t block = slot / cache.block_size, offset = slot % cache.block_size;
  char* keys = static_cast<char*>(cache.keys) + block * cache.kv_heads * head_bytes;
  const int64_t step = std::max<int64_t>(64, cache.block_size * element);
  for (int64_t at = offset * element; at < cache.kv_heads * head_bytes; at += step)
    __builtin_prefetch(keys + at, 1);
}

void cache_write_row(const kv_cache_layer& cache, const float* k, const float* v, int64_t slot) {
  const int64_t size = cache.block_size, width = cache.head_size;
  const int64_t block = slot / size, offset = slot % size;
  for (int64_t head = 0; head < cache.kv_heads; ++head) {
    const int64_t at = (block * cache.kv_heads + head) * width * size;
    write_strided(cache.keys, cache.is_bf16, at + offset, size, k + head * width, width);
    write_strided(cache.values, cache.is_bf16, at + offset * width, 1, v + head * width, width);
  }
}

}  // namespace kvserve

using namespace kvserve;

void kv_rms_norm(kv_pool* pool, const float* x, const float* weight, int64_t rows, int64_t width,
                 float epsilon, float* out) {
  PoolCall call(pool);
  call->run(rows, [&](int64_t r, int) {
    rms_norm_row(x + r * width, weight, width, epsilon, out + r * width);
  });
}

void kv_layer_norm(kv_pool* pool, const float* x, const float* weight, const float* bias,
                   int64_t rows, int64_t width, float epsilon, float* out) {
  PoolCall call(pool);
  call->run(rows, [&](int64_t r, int) {
    layer_norm_row(x + r * width, weight, bias, width, epsilon, out + r * width);
  });
}

void kv_gated_activation(kv_pool* pool, int32_t activation, const float* gate, const float* up,
                         int64_t rows, int64_t width, int64_t stride, float* out) {
  PoolCall call(pool);
  call->run(rows, [&](int64_t r, int) {
    activation_row(activation, gate + r * stride, up ? up + r * stride : nullptr, width,
                   out + r * width);
  });
}

void kv_rotary(kv_pool* pool, float* x, int64_t rows, int64_t row_stride, int64_t heads,
               int64_t head_size, const int64_t* positions, const float* cosines,
               const float* sines) {
  PoolCall call(pool);
  const int64_t half = head_size / 2;
  call->run(rows, [&](int64_t r, int) {
    for (int64_t h = 0; h < heads; ++h)
      rotate_head(x + r * row_stride + h * head_size, half, cosines + positions[r] * half,
                  sines + positions[r] * half);
  });
}

void kv_cache_write(kv_pool* pool, const kv_cache_layer* cache, const float* k, const float* v,
                    int64_t rows, int64_t row_stride, const int64_t* slots) {
  PoolCall call(pool);
  call->run(rows, [&](int64_t r, int) {
    cache_write_row(*cache, k + r * row_stride, v + r * row_stride, slots[r]);
  });
}
