// The operations of elementwise.h, and their exported forms over many rows.
#include "elementwise.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cache_layout.h"
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

void activate_clamped(const float* gate, const float* up, int64_t width, float* out) {
  for (int64_t i = 0; i < width; i += W) {
    const int64_t n = width - i;
    store_upto(out + i, clamped_swiglu(load_upto(gate + i, n), load_upto(up + i, n)), n);
  }
}
}  // namespace

void activation_row(int32_t activation, const float* gate, const float* up, int64_t width,
                    float* out) {
  switch (activation) {
    case KV_SILU: return activate([](F x) { return silu(x); }, gate, up, width, out);
    case KV_GELU_TANH: return activate([](F x) { return gelu_tanh(x); }, gate, up, width, out);
    case KV_CLAMPED_SWIGLU: return activate_clamped(gate, up, width, out);
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
// The int8 form of x (n), at most 127 scales each: returns the scale, and what divides by it.
struct Int8Scale {
  uint16_t scale;
  float inverse;
};
Int8Scale int8_scale(const float* x, int64_t n) {
  float largest = 0.0f;
  bool is_finite = true;
  for (int64_t i = 0; i < n; ++i) {
    const float size = std::fabs(x[i]);
    largest = std::max(largest, size);
    is_finite &= size <= std::numeric_limits<float>::max();
  }
  // What is not finite stays so for whoever reads it, and nobody else.
  if (!is_finite) return {float_to_bf16(std::numeric_limits<float>::quiet_NaN()), 0.0f};
  uint16_t scale = float_to_bf16(largest / 127.0f);
  if (bf16_to_float(scale) * 127.0f < largest) ++scale;  // rounded up: nothing is cut off
  const float value = bf16_to_float(scale);
  return {scale, value >= std::numeric_limits<float>::min() ? 1.0f / value : 0.0f};
}

// Writes x (n) to every `step`-th number from `at` on, and in the int8 format its scale.
void write_strided(int32_t format, char* head, int64_t at, int64_t step, uint16_t* scale,
                   const float* x, int64_t n) {
  if (format == KV_CACHE_INT8) {
    const Int8Scale found = int8_scale(x, n);
    *scale = found.scale;
    int8_t* out = reinterpret_cast<int8_t*>(head) + at;
    // Nothing is multiplied by the inverse 0 that is not finite: NaN has no integer.
    for (int64_t i = 0; i < n; ++i)
      out[i * step] = found.inverse ? static_cast<int8_t>(std::rint(x[i] * found.inverse)) : 0;
  } else if (format == KV_CACHE_BFLOAT16) {
    uint16_t* out = reinterpret_cast<uint16_t*>(head) + at;
    for (int64_t i = 0; i < n; ++i) out[i * step] = float_to_bf16(x[i]);
  } else {
    float* out = reinterpret_cast<float*>(head) + at;
    for (int64_t i = 0; i < n; ++i) out[i * step] = x[i];
  }
}
}  // namespace

void prefetch_cache_row(const kv_cache_layer& cache, int64_t slot) {
  const int64_t element = element_bytes(cache.format);
  const int64_t block = slot / cache.block_size, offset = slot % cache.block_size;
  const int64_t bytes = cache.kv_heads * head_bytes(cache);
  char* keys = static_cast<char*>(cache.keys) + block * bytes;
  const int64_t step = std::max<int64_t>(64, cache.block_size * element);
  for (int64_t at = offset * element; at < bytes; at += step)
    __builtin_prefetch(keys + at, 1);
}

void cache_write_row(const kv_cache_layer& cache, const float* k, const float* v, int64_t slot) {
  const int64_t size = cache.block_size, width = cache.head_size;
  const int64_t block = slot / size, offset = slot % size;
  const int64_t bytes = head_bytes(cache), scales = size * width * element_bytes(cache.format);
  for (int64_t head = 0; head < cache.kv_heads; ++head) {
    const int64_t at = (block * cache.kv_heads + head) * bytes;
    char* keys = static_cast<char*>(cache.keys) + at;
    char* values = static_cast<char*>(cache.values) + at;
    write_strided(cache.format, keys, offset, size,
                  reinterpret_cast<uint16_t*>(keys + scales) + offset, k + head * width, width);
    write_strided(cache.format, values, offset * width, 1,
                  reinterpret_cast<uint16_t*>(values + scales) + offset, v + head * width, width);
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
