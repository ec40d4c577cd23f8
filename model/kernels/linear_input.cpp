// Rounding activations, as linear_input.h describes it.
#include "linear_input.h"

#include <cfloat>
#include <cmath>

#include "simd.h"

namespace kvserve {

void QuantisedRows::quantise_row(int64_t row, const float* x, int64_t width) {
  constexpr int V = kGroup / W;
  QuantisedGroup* group = data + row * groups;
  for (int64_t g = 0; g < groups; ++g, ++group) {
    float padded[kGroup];
    const float* source = x + g * kGroup;
    if (width - g * kGroup < kGroup) {
      std::memset(padded, 0, sizeof padded);
      std::memcpy(padded, source, sizeof(float) * (width - g * kGroup));
      source = padded;
    }
    F low = {}, high = {}, check = {};
    KV_UNROLL
    for (int v = 0; v < V; ++v) {
      const F values = load(source + v * W);
      low = min(low, values);
      high = max(high, values);
      check = check + values;
    }
    float most, minus_least;
    reduce_max_both(high, -low, &most, &minus_least);
    const float range = most + minus_least;  // 0 lies in it, so the zero is in -127..127
    const bool is_usual = range >= 1e-30f && range <= FLT_MAX && !any_nan(check);
    // What is not finite reaches the scale and so the output, instead of becoming some number.
    const float scale = any_nan(check) ? NAN : range / 254.0f;
    const float steps = is_usual ? 254.0f / range : 0.0f;
    const float zero = is_usual ? std::nearbyint(-127.0f + minus_least * steps) : 0.0f;
    I sum = {};
    KV_UNROLL
    for (int v = 0; v < V; ++v) {
      const F q = round_even(load(source + v * W) * set1(steps)) + set1(zero);
      const I whole = to_int(min(max(q, set1(-127.0f)), set1(127.0f)));
      store_bytes(group->values + v * W, whole);
      sum = sum + whole;
    }
    const int32_t total = reduce_add(sum);
    group->minus_zero = static_cast<int16_t>(-zero);
    group->minus_sum = static_cast<int16_t>(-total);
    group->scale = scale;
    group->scaled_sum = scale * (static_cast<float>(total) - zero * kGroup);
  }
}

void Bfloat16Rows::round_row(int64_t row, const float* x, int64_t width) {
  uint16_t* out = data + row * stride;
  for (int64_t i = 0; i < width; i += W) store_bf16(out + i, load_upto(x + i, width - i));
  for (int64_t i = ceil_div(width, W) * W; i < stride; ++i) out[i] = 0;
}

}  // namespace kvserve
