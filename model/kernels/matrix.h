// Packed weights: where every value of a matrix lies.
//
// Responsible for: the layout, shared by packing (pack.cpp) and multiplying (linear.cpp).
//
// Outputs are cut into panels of 16 (the last one padded with zeros), stored one after the other,
// so one row of activations streams the whole matrix front to back.  Inside a panel:
//
//   KV_F32   per input: 16 floats
//   KV_BF16  per pair of inputs: 16 x (even, odd), so a 32-bit lane holds two inputs of one output
//   KV_INT8  first the scales, per group of 32 inputs 16 float16 (padded to 64 bytes); then per
//            group 8 x 64 bytes, each 16 outputs x 4 inputs, stored as q + 128
//   KV_INT4  scales likewise; then per group 4 x 64 bytes, each 16 outputs x 4 bytes, a byte's low
//            half for inputs 8r .. 8r+3 and its high half for 8r+4 .. 8r+7
//   KV_INT4_AFFINE  the same with 16 scales and 16 minima per group
//
// The layout is the same on every instruction set.  Inputs are padded to whole groups with zeros.
#pragma once

#include <cstdint>

#include "kvserve.h"
#include "simd.h"

namespace kvserve {

constexpr int kGroup = 32;

KV_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Layout {
  int64_t groups;       // quantised formats only
  int64_t scale_bytes;  // in front of a panel's values
  int64_t group_bytes;  // values of one group of a panel
  int64_t panel_bytes;
  int64_t panels;
};

void gather_one_row(const kv_matrix& matrix, int64_t row, float scale, float* out);  // pack.cpp

KV_INLINE bool is_quantised(int32_t format) { return format >= KV_INT8; }

// Whether products with such weights read activations rounded to bfloat16.
KV_INLINE bool reads_bfloat16(int32_t format) {
#if defined(KVSERVE_AMX)
  return format == KV_BF16;
#else
  (void)format;
  return false;
#endif
}

inline Layout layout_of(int32_t format, int64_t out_features, int64_t in_features) {
  Layout l{};
  l.panels = ceil_div(out_features, kPanel);
  if (format == KV_F32) {
    l.panel_bytes = in_features * kPanel * 4;
  } else if (format == KV_BF16) {
    l.panel_bytes = ceil_div(in_features, 2) * kPanel * 4;
  } else {
    l.groups = ceil_div(in_features, kGroup);
    const int64_t per_group = kPanel * (format == KV_INT4_AFFINE ? 4 : 2);
    l.scale_bytes = ceil_div(l.groups * per_group, 64) * 64;
    l.group_bytes = kPanel * kGroup / (format == KV_INT8 ? 1 : 2);
    l.panel_bytes = l.scale_bytes + l.groups * l.group_bytes;
  }
  return l;
}

}  // namespace kvserve
