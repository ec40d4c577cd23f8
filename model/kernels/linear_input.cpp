// Rounding activations, as linear_input.h describes it.
#include "linear_input.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "simd.h"

namespace kvserve {

namespace {

constexpr int kVectorsPerGroup = kGroup / W;

// Values of a group, zero from `left` on.
KV_INLINE F load_values(const float* x, int64_t left, int v) {
  return load_upto(x + v * W, std::max<int64_t>(0, left - v * W));
}

// At most W groups at a time, so that they share what each needs once: divisions and sums.
void quantise_groups(const float* x, int64_t width, int count, QuantisedGroup* out) {
  F highs[W], minus_lows[W];
  alignas(64) float nans[W] = {}, steps[W], zeros[W], scales[W], scaled_sums[W];
  for (int i = 0; i < W; ++i) {
    F low = {}, high = {}, check = {};
    KV_UNROLL
    for (int v = 0; i < count && v < kVectorsPerGroup; ++v) {
      const F values = load_values(x + i * kGroup, width - i * kGroup, v);
      low = min(low, values);
      high = max(high, values);
      check = check + values;
    }
    highs[i] = high;
    minus_lows[i] = -low;
    if (any_nan(check)) nans[i] = NAN;
  }
  const auto larger = [](F a, F b) { return max(a, b); };
  const F minus_least = reduce_each(minus_lows, larger), nan = load(nans);
  const F range = reduce_each(highs, larger) + minus_least;  // 0 lies in it: zero is in -127..127
  const I is_usual = (range >= set1(1e-30f)) & (range <= set1(FLT_MAX)) & (nan == F{});
  const F step = (F)((I)(set1(254.0f) / range) & is_usual);
  const F zero = (F)((I)round_even(set1(-127.0f) + minus_least * step) & is_usual);
  // What is not finite reaches the scale and so the output, instead of becoming some number.
  const F scale = range / set1(254.0f) + nan;
  store(steps, step);
  store(zeros, zero);
  store(scales, scale);
  I sums[W] = {};
  for (int i = 0; i < count; ++i) {
    KV_UNROLL
    for (int v = 0; v < kVectorsPerGroup; ++v) {
      const F values = load_values(x + i * kGroup, width - i * kGroup, v);
      const F q = round_even(values * set1(steps[i])) + set1(zeros[i]);
      const I whole = to_int(min(max(q, set1(-127.0f)), set1(127.0f)));
      store_bytes(out[i].values + v * W, whole);
      sums[i] = sums[i] + whole;
    }
  }
  const I totals = reduce_each(sums, [](I a, I b) { return a + b; });
  store(scaled_sums, scale * (to_float(totals) - zero * set1(float(kGroup))));
  for (int i = 0; i < count; ++i) {
    out[i].minus_zero = static_cast<int16_t>(-zeros[i]);
    out[i].minus_sum = static_cast<int16_t>(-totals[i]);
    out[i].scale = scales[i];
    out[i].scaled_sum = scaled_sums[i];
  }
}

}  // namespace

void QuantisedRows::quantise_row(int64_t row, const float* x, int64_t width) {
  for (int64_t g = 0; g < groups; g += W)
    quantise_groups(x + g * kGroup, width - g * kGroup,
                    static_cast<int>(std::min<int64_t>(W, groups - g)), data + row * groups + g);
}

void Bfloat16Rows::round_row(int64_t row, const float* x, int64_t width) {
  uint16_t* out = data + row * stride;
  for (int64_t i = 0; i < width; i += W) store_bf16(out + i, load_upto(x + i, width - i));
  for (int64_t i = ceil_div(width, W) * W; i < stride; ++i) out[i] = 0;
}

}  // namespace kvserve
