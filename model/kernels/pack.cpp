// Packing weights, and reading rows of packed weights back.
//
// Responsible for: float rows and GGUF blocks -> the panels of matrix.h; embedding rows.
// GGUF block layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
#include <algorithm>
#include <cmath>


#include "matrix.h"
#include "pool_handle.h"

namespace kvserve {
namespace {

uint16_t float_to_half(float f) {  // to nearest, ties to even; too large becomes the largest
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const float magnitude = std::fabs(f);
  if (!(magnitude < 65520.0f)) return sign | 0x7bff;
  if (magnitude < 6.103515625e-05f)  // subnormal: a multiple of 2^-24
    return sign | static_cast<uint16_t>(std::nearbyint(magnitude * 16777216.0f));
  bits &= 0x7fffffffu;
  bits += 0xfffu + ((bits >> 13) & 1);
  return sign | static_cast<uint16_t>((bits - (112u << 23)) >> 13);
}

// One output's group of 32 inputs in whole numbers.
struct Group {
  float scale = 0.0f;
  float min = 0.0f;    // KV_INT4_AFFINE only
  int8_t q[kGroup] = {};  // -128..127, or 0..15
};

class PanelWriter {
 public:
  PanelWriter(int32_t format, const Layout& layout, uint8_t* panel)
      : format_(format), layout_(layout), panel_(panel) {}

  void put(int lane, int64_t g, const Group& group) {
    uint16_t* scales = reinterpret_cast<uint16_t*>(panel_);
    const bool affine = format_ == KV_INT4_AFFINE;
    uint16_t* s = scales + g * kPanel * (affine ? 2 : 1) + lane;
    s[0] = float_to_half(group.scale);
    if (affine) s[kPanel] = float_to_half(group.min);
    uint8_t* values = panel_ + layout_.scale_bytes + g * layout_.group_bytes + lane * 4;
    for (int k = 0; k < kGroup; ++k) {
      const int quad = k / 4, byte = k % 4;
      if (format_ == KV_INT8) {
        values[quad * 64 + byte] = static_cast<uint8_t>(group.q[k] + 128);
      } else {
        uint8_t* at = values + (quad / 2) * 64 + byte;
        if (quad % 2 == 0) *at = static_cast<uint8_t>(group.q[k]);
        else *at = static_cast<uint8_t>(*at | (group.q[k] << 4));
      }
    }
  }

 private:
  int32_t format_;
  const Layout& layout_;
  uint8_t* panel_;
};

Group round_int8(const float* w) {
  float largest = 0.0f;
  for (int k = 0; k < kGroup; ++k) largest = std::max(largest, std::fabs(w[k]));
  Group group;
  group.scale = half_to_float(float_to_half(largest / 127.0f));
  const float inverse = group.scale > 0.0f ? 1.0f / group.scale : 0.0f;
  for (int k = 0; k < kGroup; ++k)
    group.q[k] = static_cast<int8_t>(
        std::min(127.0f, std::max(-127.0f, std::nearbyint(w[k] * inverse))));
  return group;
}

// Rounds to scale * q + min; returns the squared error.
float round_affine(const float* w, float scale, float min, Group* group) {
  group->scale = half_to_float(float_to_half(scale));
  group->min = half_to_float(float_to_half(min));
  const float inverse = group->scale > 0.0f ? 1.0f / group->scale : 0.0f;
  float error = 0.0f;
  for (int k = 0; k < kGroup; ++k) {
    const float q = std::min(
        15.0f, std::max(0.0f, std::nearbyint((w[k] - group->min) * inverse)));
    group->q[k] = static_cast<int8_t>(q);
    const float miss = group->scale * q + group->min - w[k];
    error += miss * miss;
  }
  return error;
}

// Starts from the range of the values, then refits scale and min to the rounded values by least
// squares while that helps.
Group round_int4_affine(const float* w) {
  const auto [low, high] = std::minmax_element(w, w + kGroup);
  Group best;
  float best_error = round_affine(w, (*high - *low) / 15.0f, *low, &best);
  for (int attempt = 0; attempt < 3; ++attempt) {
    float sq = 0, sqq = 0, sw = 0, sqw = 0;
    for (int k = 0; k < kGroup; ++k) {
      const float q = best.q[k];
      sq += q;
      sqq += q * q;
      sw += w[k];
      sqw += q * w[k];
    }
    const float determinant = kGroup * sqq - sq * sq;
    if (determinant <= 0.0f) break;
    const float scale = (kGroup * sqw - sq * sw) / determinant;
    if (!(scale > 0.0f)) break;
    Group refit;
    const float error = round_affine(w, scale, (sw - scale * sq) / kGroup, &refit);
    if (!(error < best_error)) break;
    best = refit;
    best_error = error;
  }
  return best;
}

Group round_int4(const float* w) {
  float largest = 0.0f;
  for (int k = 0; k < kGroup; ++k)
    if (std::fabs(w[k]) > std::fabs(largest)) largest = w[k];
  Group group;  // the value of largest magnitude becomes q = 0, that is -8
  group.scale = half_to_float(float_to_half(largest / -8.0f));
  const float inverse = group.scale != 0.0f ? 1.0f / group.scale : 0.0f;
  for (int k = 0; k < kGroup; ++k)
    group.q[k] = static_cast<int8_t>(
        std::min(15.0f, std::max(0.0f, std::nearbyint(w[k] * inverse) + 8.0f)));
  return group;
}

float source_value(const void* source, int32_t format, int64_t i) {
  return format == KV_F32 ? static_cast<const float*>(source)[i]
                          : bf16_to_float(static_cast<const uint16_t*>(source)[i]);
}

void pack_panel_float(int32_t format, const void* source, int32_t source_format, int64_t first,
                      int64_t out_features, int64_t in_features, uint8_t* panel) {
  for (int lane = 0; lane < kPanel; ++lane) {
    if (first + lane >= out_features) break;
    const int64_t row = (first + lane) * in_features;
    for (int64_t k = 0; k < in_features; ++k) {
      const float w = source_value(source, source_format, row + k);
      if (format == KV_F32)
        reinterpret_cast<float*>(panel)[k * kPanel + lane] = w;
      else
        reinterpret_cast<uint16_t*>(panel)[(k / 2 * kPanel + lane) * 2 + k % 2] = float_to_bf16(w);
    }
  }
}

void pack_panel_rounded(int32_t format, const Layout& layout, const void* source,
                        int32_t source_format, int64_t first, int64_t out_features,
                        int64_t in_features, uint8_t* panel) {
  PanelWriter writer(format, layout, panel);
  for (int lane = 0; lane < kPanel; ++lane) {
    for (int64_t g = 0; g < layout.groups; ++g) {
      float w[kGroup] = {};
      if (first + lane < out_features)
        for (int64_t k = 0; k < std::min<int64_t>(kGroup, in_features - g * kGroup); ++k)
          w[k] = source_value(source, source_format,
                              (first + lane) * in_features + g * kGroup + k);
      writer.put(lane, g,
                 format == KV_INT8 ? round_int8(w)
                                   : format == KV_INT4 ? round_int4(w) : round_int4_affine(w));
    }
  }
}

// ---- GGUF ----

enum GgufType {
  kQ4_0 = 2, kQ4_1 = 3, kQ5_0 = 6, kQ8_0 = 8, kQ4_K = 12, kIQ4_NL = 20, kIQ4_XS = 23, kMXFP4 = 39
};

// What the sixteen numbers of a nibble stand for.
constexpr int8_t kNonLinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};
constexpr int8_t kTwiceE2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

void look_up(const int8_t* table, int8_t* q) {
  for (int k = 0; k < kGroup; ++k) q[k] = table[q[k]];
}

float half_at(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
  return half_to_float(h);
}

// Two nibbles a byte: the low ones are the first half of the group.
void read_nibbles(const uint8_t* bytes, int8_t* q) {
  for (int j = 0; j < 16; ++j) {
    q[j] = static_cast<int8_t>(bytes[j] & 15);
    q[j + 16] = static_cast<int8_t>(bytes[j] >> 4);
  }
}

void read_q4_k(const uint8_t* block, int64_t sub, Group* group) {
  const uint8_t* packed = block + 4;  // eight 6-bit scales and minima in 12 bytes
  int scale, min;
  if (sub < 4) {
    scale = packed[sub] & 63;
    min = packed[sub + 4] & 63;
  } else {
    scale = (packed[sub + 4] & 15) | (packed[sub - 4] >> 6) << 4;
    min = (packed[sub + 4] >> 4) | (packed[sub] >> 6) << 4;
  }
  group->scale = half_at(block) * static_cast<float>(scale);
  group->min = -half_at(block + 2) * static_cast<float>(min);
  const uint8_t* bytes = block + 16 + sub / 2 * 32;
  for (int k = 0; k < kGroup; ++k)
    group->q[k] = static_cast<int8_t>(sub % 2 == 0 ? bytes[k] & 15 : bytes[k] >> 4);
}

void read_iq4_xs(const uint8_t* block, int64_t sub, Group* group) {
  uint16_t high;  // two bits of each of eight scales; their four low bits follow
  std::memcpy(&high, block + 2, 2);
  const int low = block[4 + sub / 2] >> (sub % 2 * 4) & 15;
  const int scale = (low | (high >> (2 * sub) & 3) << 4) - 32;
  group->scale = half_at(block) * static_cast<float>(scale);
  read_nibbles(block + 8 + sub * 16, group->q);
  look_up(kNonLinear, group->q);
}

int64_t gguf_row_bytes(int32_t type, int64_t in_features) {
  switch (type) {
    case kIQ4_NL: return in_features / 32 * 18;
    case kIQ4_XS: return in_features / 256 * 136;
    case kMXFP4: return in_features / 32 * 17;
    case kQ4_0: return in_features / 32 * 18;
    case kQ4_1: return in_features / 32 * 20;
    case kQ5_0: return in_features / 32 * 22;
    case kQ8_0: return in_features / 32 * 34;
    default: return in_features / 256 * 144;
  }
}

Group read_gguf(int32_t type, const uint8_t* row, int64_t g) {
  Group group;
  if (type == kQ4_0) {
    row += g * 18;
    group.scale = half_at(row);
    read_nibbles(row + 2, group.q);
  } else if (type == kQ4_1) {
    row += g * 20;
    group.scale = half_at(row);
    group.min = half_at(row + 2);
    read_nibbles(row + 4, group.q);
  } else if (type == kQ5_0) {  // d * (q - 16), five bits: exact as int8
    row += g * 22;
    group.scale = half_at(row);
    uint32_t high;
    std::memcpy(&high, row + 2, 4);
    read_nibbles(row + 6, group.q);
    for (int k = 0; k < kGroup; ++k)
      group.q[k] = static_cast<int8_t>((group.q[k] | ((high >> k & 1) << 4)) - 16);
  } else if (type == kQ8_0) {
    row += g * 34;
    group.scale = half_at(row);
    std::memcpy(group.q, row + 2, kGroup);
  } else if (type == kIQ4_NL) {
    row += g * 18;
    group.scale = half_at(row);
    read_nibbles(row + 2, group.q);
    look_up(kNonLinear, group.q);
  } else if (type == kIQ4_XS) {
    read_iq4_xs(row + g / 8 * 136, g % 8, &group);
  } else if (type == kMXFP4) {  // a power of two for 32 numbers of four bits
    row += g * 17;
    group.scale = std::ldexp(1.0f, row[0] - 128);
    read_nibbles(row + 1, group.q);
    look_up(kTwiceE2M1, group.q);
  } else {
    read_q4_k(row + g / 8 * 144, g % 8, &group);
  }
  return group;
}

int32_t format_of_gguf(int32_t type) {
  switch (type) {
    case kQ4_0: return KV_INT4;
    case kQ4_1: return KV_INT4_AFFINE;
    case kQ4_K: return KV_INT4_AFFINE;
    case kQ5_0: return KV_INT8;
    case kQ8_0: return KV_INT8;
    case kIQ4_NL: return KV_INT8;
    case kIQ4_XS: return KV_INT8;
    case kMXFP4: return KV_INT8;
    default: return -1;
  }
}

// ---- the way back ----

void gather_row(const kv_matrix& m, const Layout& layout, int64_t row, float scale, float* out) {
  const uint8_t* panel =
      static_cast<const uint8_t*>(m.data) + row / kPanel * layout.panel_bytes;
  const int lane = static_cast<int>(row % kPanel);
  if (m.format == KV_F32) {
    const float* w = reinterpret_cast<const float*>(panel);
    for (int64_t k = 0; k < m.in_features; ++k) out[k] = scale * w[k * kPanel + lane];
    return;
  }
  if (m.format == KV_BF16) {
    const uint16_t* w = reinterpret_cast<const uint16_t*>(panel);
    for (int64_t k = 0; k < m.in_features; ++k)
      out[k] = scale * bf16_to_float(w[(k / 2 * kPanel + lane) * 2 + k % 2]);
    return;
  }
  const bool affine = m.format == KV_INT4_AFFINE;
  const uint16_t* scales = reinterpret_cast<const uint16_t*>(panel);
  for (int64_t k = 0; k < m.in_features; ++k) {
    const int64_t g = k / kGroup;
    const int quad = static_cast<int>(k % kGroup / 4);
    const uint8_t* values =
        panel + layout.scale_bytes + g * layout.group_bytes + lane * 4 + k % 4;
    const uint16_t* s = scales + g * kPanel * (affine ? 2 : 1) + lane;
    float w;
    if (m.format == KV_INT8) {
      w = half_to_float(s[0]) * static_cast<float>(values[quad * 64] - 128);
    } else {
      const int q = values[quad / 2 * 64] >> (quad % 2 * 4) & 15;
      w = affine ? half_to_float(s[0]) * static_cast<float>(q) + half_to_float(s[kPanel])
                 : half_to_float(s[0]) * static_cast<float>(q - 8);
    }
    out[k] = scale * w;
  }
}

}  // namespace

void gather_one_row(const kv_matrix& matrix, int64_t row, float scale, float* out) {
  gather_row(matrix, layout_of(matrix.format, matrix.out_features, matrix.in_features), row, scale,
             out);
}

}  // namespace kvserve

using namespace kvserve;

int64_t kv_packed_bytes(int32_t format, int64_t out_features, int64_t in_features) {
  if (format < KV_F32 || format > KV_INT4_AFFINE) return 0;
  const Layout layout = layout_of(format, out_features, in_features);
  return layout.panels * layout.panel_bytes;
}

int32_t kv_pack_float(kv_pool* pool, int32_t format, int32_t source_format, const void* source,
                      int64_t out_features, int64_t in_features, void* packed) {
  const Layout layout = layout_of(format, out_features, in_features);
  PoolCall call(pool);
  call->run(layout.panels, [&](int64_t p, int) {
    uint8_t* panel = static_cast<uint8_t*>(packed) + p * layout.panel_bytes;
    std::memset(panel, 0, layout.panel_bytes);
    if (is_quantised(format))
      pack_panel_rounded(format, layout, source, source_format, p * kPanel, out_features,
                         in_features, panel);
    else
      pack_panel_float(format, source, source_format, p * kPanel, out_features, in_features,
                       panel);
  });
  return format;
}

int32_t kv_pack_gguf(kv_pool* pool, int32_t gguf_type, const void* source, int64_t out_features,
                     int64_t in_features, void* packed) {
  const int32_t format = format_of_gguf(gguf_type);
  if (format < 0 || packed == nullptr) return format;
  const Layout layout = layout_of(format, out_features, in_features);
  const int64_t row_bytes = gguf_row_bytes(gguf_type, in_features);
  PoolCall call(pool);
  call->run(layout.panels, [&](int64_t p, int) {
    uint8_t* panel = static_cast<uint8_t*>(packed) + p * layout.panel_bytes;
    std::memset(panel, 0, layout.panel_bytes);
    PanelWriter writer(format, layout, panel);
    for (int lane = 0; lane < kPanel; ++lane) {
      const int64_t row = p * kPanel + lane;
      for (int64_t g = 0; g < layout.groups; ++g)
        writer.put(lane, g,
                   row < out_features
                       ? read_gguf(gguf_type,
                                   static_cast<const uint8_t*>(source) + row * row_bytes, g)
                       : Group{});
    }
  });
  return format;
}

void kv_gather_rows(kv_pool* pool, const kv_matrix* matrix, const int64_t* rows, int64_t count,
                    float scale, float* out) {
  PoolCall call(pool);
  call->run(count, [&](int64_t i, int) {
    gather_one_row(*matrix, rows[i], scale, out + i * matrix->in_features);
  });
}
