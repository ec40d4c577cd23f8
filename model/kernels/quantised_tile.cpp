// Tiles of tile.h over int8 and 4-bit weights.
//
// With w = scale_w (q_w - excess) [+ min_w] and x = scale_x (q_x - zero), a group's sum is
//
//   scale_w scale_x D + min_w sum(x),   D = sum(q_w q_x) - zero totals - excess sum(q_x)
//
// where `totals` is the sum of the weights as signed numbers.  D is a whole number.
#include <type_traits>

#include "tile.h"

namespace kvserve {
namespace {

// Tile shapes: the accumulators must fit the registers.  Few rows take more panels at once, so
// that enough independent sums are in flight to hide the latency of each.
#if defined(KVSERVE_AVX512)
template <int Format>
constexpr int kRows = 4;
constexpr int kPanels = 3, kWideRows = 3, kWidePanels = 4;
#elif defined(KVSERVE_AVXVNNI)
template <int Format>
constexpr int kRows = 6;
constexpr int kPanels = 1, kWideRows = 4, kWidePanels = 1;
#elif defined(KVSERVE_AVX2)
template <int Format>
constexpr int kRows = Format == KV_INT8 ? 4 : 3;
constexpr int kPanels = 1, kWideRows = 4, kWidePanels = 1;
#elif defined(KVSERVE_DOTPROD)
template <int Format>
constexpr int kRows = 4;
constexpr int kPanels = 1, kWideRows = 2, kWidePanels = 1;
#else
template <int Format>
constexpr int kRows = 2;
constexpr int kPanels = 1, kWideRows = 1, kWidePanels = 1;
#endif
static_assert(kPanels <= kMostPartialPanels, "prepared tiles sum in parts");

KV_INLINE int32_t load_quad(const void* at) {
  int32_t quad;
  std::memcpy(&quad, at, 4);
  return quad;
}

// How much larger than the signed weight the kernels' one is.
template <int Format>
constexpr int32_t excess() {
  return Format == KV_INT8 ? kExcess8 : Format == KV_INT4 ? 8 : 0;
}

// Panels laid out for many rows, which then share the work: 4-bit weights widened to bytes, scales
// to floats, and the totals.  Per group and vector of outputs, one after the other:
template <int Format>
struct Prepared {
  static constexpr bool affine = Format == KV_INT4_AFFINE;
  static constexpr int64_t values = Format == KV_INT8 ? 0 : 8 * W * 4;  // int8: left in the panel
  static constexpr int64_t correction = values, scale = correction + W * 4, min = scale + W * 4;
  static constexpr int64_t bytes = min + (affine ? W * 4 : 0);
};

// What products of weights and activations add up in.
template <int Format>
using Sums = std::conditional_t<Format == KV_INT8, I, Sums4>;

template <int Format>
KV_INLINE Sums<Format> dot4(Sums<Format> sums, I w, I x4) {
  if constexpr (Format == KV_INT8) return dot4_u8(sums, w, x4);
  else return dot4_u4(sums, w, x4);
}

// totals += one line of weights (16 outputs x 4 inputs, or x 8 if Format has 4 bits) times ones.
template <int Format>
KV_INLINE Sums<Format> add_totals(Sums<Format> totals, I w) {
  const I ones = set1(int32_t(0x01010101)), mask = set1(int32_t(0x0f0f0f0f));
  if (Format == KV_INT8) return dot4<Format>(totals, w, ones);
  return dot4<Format>(dot4<Format>(totals, w & mask, ones), (w >> 4) & mask, ones);
}

// A group's totals beside its excess, to meet minus_zero and minus_sum.
template <int Format>
KV_INLINE I correction_of(Sums<Format> totals) {
  const I all = whole(totals) - set1(kGroup * excess<Format>());
  return (all & set1(int32_t(0xffff))) | set1(excess<Format>() << 16);
}

// 64-byte lines of weights in a group.
template <int Format>
constexpr int kLines = Format == KV_INT8 ? 8 : 4;

// The 64 bytes of vector v, one of several neighbouring panels'.
KV_INLINE I weight_bytes(const uint8_t* values, int64_t panel_bytes, int v) {
  return load_as<I>(values + v / kVectors * panel_bytes + v % kVectors * W * 4);
}

// The scales of group g for vector v of neighbouring panels; minima stand kPanel further.
template <int Format>
KV_INLINE const uint16_t* scales_of(const uint8_t* panel, int64_t panel_bytes, int64_t g, int v) {
  constexpr int64_t per_group = kPanel * (Format == KV_INT4_AFFINE ? 2 : 1);
  return reinterpret_cast<const uint16_t*>(panel + v / kVectors * panel_bytes) + g * per_group +
         v % kVectors * W;
}

// Lays groups [group_begin, group_end) of P neighbouring panels out as Prepared.
template <int Format, int P>
void prepare(const Layout& layout, const uint8_t* panel, int64_t group_begin, int64_t group_end,
             uint8_t* out) {
  using To = Prepared<Format>;
  const I mask = set1(int32_t(0x0f0f0f0f));
  for (int64_t g = group_begin; g < group_end; ++g) {
    KV_UNROLL
    for (int v = 0; v < P * kVectors; ++v, out += To::bytes) {
      const uint8_t* values = panel + layout.scale_bytes + g * layout.group_bytes;
      Sums<Format> totals = {};
      KV_UNROLL
      for (int line = 0; line < kLines<Format>; ++line) {
        const I w = weight_bytes(values + line * 64, layout.panel_bytes, v);
        totals = add_totals<Format>(totals, w);
        if (Format == KV_INT8) continue;
        store_as(out + 2 * line * W * 4, w & mask);
        store_as(out + (2 * line + 1) * W * 4, (w >> 4) & mask);
      }
      store_as(out + To::correction, correction_of<Format>(totals));
      const uint16_t* s = scales_of<Format>(panel, layout.panel_bytes, g, v);
      store_as(out + To::scale, load_half(s));
      if (To::affine) store_as(out + To::min, load_half(s + kPanel));
    }
  }
}

// One line of a group: four inputs, or eight as packed with 4 bits.
template <int Format, bool IsPrepared>
KV_INLINE I weight_line(const uint8_t* values, int64_t panel_bytes, int line, int v) {
  if (Format != KV_INT8 && IsPrepared)
    return load_as<I>(values + v * Prepared<Format>::bytes + line * W * 4);
  return weight_bytes(values + line * 64, panel_bytes, v);
}

#if defined(KVSERVE_I8MM)
// group_dots by matrix products: two rows at once, eight inputs at once.
template <int Format, int R, int V>
KV_INLINE void pair_dots(const uint8_t* values, int64_t panel_bytes,
                         const QuantisedGroup* const (&x)[R], I (&dots)[R][V]) {
  constexpr int kPairs = (R + 1) / 2;  // the last one may hold a row twice
  const I sign = set1(Format == KV_INT8 ? int32_t(0x80808080u) : 0);
  PairSums sums[kPairs][V] = {};
  KV_UNROLL
  for (int line = 0; line < 8; line += 2) {
    int8x16_t rows[kPairs];
    KV_UNROLL
    for (int p = 0; p < kPairs; ++p)
      rows[p] = vcombine_s8(vld1_s8(x[2 * p]->values + line * 4),
                            vld1_s8(x[2 * p + 1 < R ? 2 * p + 1 : 2 * p]->values + line * 4));
    KV_UNROLL
    for (int v = 0; v < V; ++v) {
      const I even = sign ^ weight_line<Format, true>(values, panel_bytes, line, v);
      const I odd = sign ^ weight_line<Format, true>(values, panel_bytes, line + 1, v);
      KV_UNROLL
      for (int p = 0; p < kPairs; ++p) add_pair(sums[p][v], even, odd, rows[p]);
    }
  }
  KV_UNROLL
  for (int r = 0; r < R; ++r)
    KV_UNROLL
    for (int v = 0; v < V; ++v)
      dots[r][v] = dots[r][v] + (r % 2 ? sums[r / 2][v].second() : sums[r / 2][v].first());
}
#endif

// dots += the products of a group's activations with the weights, for each row and output; from
// packed weights also the totals on the way.
template <int Format, bool IsPrepared, int R, int V>
KV_INLINE void group_dots(const uint8_t* values, int64_t panel_bytes,
                          const QuantisedGroup* const (&x)[R], Sums<Format> (&dots)[R][V],
                          Sums<Format> (&totals)[V]) {
#if defined(KVSERVE_I8MM)
  if constexpr (IsPrepared && R > 1) return pair_dots<Format, R, V>(values, panel_bytes, x, dots);
#endif
  const I mask = set1(int32_t(0x0f0f0f0f));
  constexpr bool wide = Format == KV_INT8 || IsPrepared;  // a byte for each weight
  KV_UNROLL
  for (int line = 0; line < (wide ? 8 : 4); ++line) {
    I low[V], high[V];
    KV_UNROLL
    for (int v = 0; v < V; ++v) {
      const I w = weight_line<Format, IsPrepared>(values, panel_bytes, line, v);
      if (!IsPrepared) totals[v] = add_totals<Format>(totals[v], w);
      low[v] = wide ? w : w & mask;
      high[v] = (w >> 4) & mask;
    }
    KV_UNROLL
    for (int r = 0; r < R; ++r) {
      const I x_low = set1(load_quad(x[r]->values + line * (wide ? 4 : 8)));
      KV_UNROLL
      for (int v = 0; v < V; ++v)
        dots[r][v] = dot4<Format>(dots[r][v], low[v], x_low);
      if (wide) continue;
      const I x_high = set1(load_quad(x[r]->values + line * 8 + 4));
      KV_UNROLL
      for (int v = 0; v < V; ++v) dots[r][v] = dot4<Format>(dots[r][v], high[v], x_high);
    }
  }
}

// Few rows read the packed panels, so that the weights pass by only once; many read prepared ones.
template <int Format, int R, int P, bool IsPrepared>
void quantised_tile(const Tile& t) {
  constexpr int V = P * kVectors;
  using From = Prepared<Format>;
  // What counts 32 bits from the start can begin with the correction.
  constexpr bool kStartCorrected = IsPrepared && std::is_same_v<Sums<Format>, I>;
  const QuantisedRows& rows = t.job->input->quantised();
  const int64_t groups = rows.groups, panel_bytes = t.layout->panel_bytes;
  constexpr int64_t group_bytes = IsPrepared && Format != KV_INT8
                                      ? V * From::bytes
                                      : kPanel * kGroup / (Format == KV_INT8 ? 1 : 2);
  const uint8_t* prepared = t.prepared;
  const uint8_t* values = IsPrepared && Format != KV_INT8
                              ? prepared
                              : t.panel + t.layout->scale_bytes + t.group_begin * group_bytes;
  const QuantisedGroup* x[R];
  KV_UNROLL
  for (int r = 0; r < R; ++r)
    x[r] = rows.data + (t.row + r) * groups + t.group_begin;
  F sums[R][V] = {};
  if (t.group_begin > 0) load_sums(t.partial, sums);
  for (int64_t g = t.group_begin; g < t.group_end; ++g) {
    Sums<Format> dots[R][V] = {}, totals[V] = {};
    if constexpr (kStartCorrected) {
      KV_UNROLL
      for (int v = 0; v < V; ++v) {
        const I correction = load_as<I>(prepared + v * From::bytes + From::correction);
        KV_UNROLL
        for (int r = 0; r < R; ++r)
          dots[r][v] = dot2_s16(correction, set1(load_quad(&x[r]->minus_zero)));
      }
    }
    group_dots<Format, IsPrepared, R, V>(values, panel_bytes, x, dots, totals);
    KV_UNROLL
    for (int v = 0; v < V; ++v) {
      const uint16_t* s = scales_of<Format>(t.panel, panel_bytes, g, v);
      const uint8_t* p = prepared + v * From::bytes;
      const F scale = IsPrepared ? load_as<F>(p + From::scale) : load_half(s);
      F min = {};
      if (From::affine) min = IsPrepared ? load_as<F>(p + From::min) : load_half(s + kPanel);
      const I correction =
          IsPrepared ? load_as<I>(p + From::correction) : correction_of<Format>(totals[v]);
      KV_UNROLL
      for (int r = 0; r < R; ++r) {
        I d = whole(dots[r][v]);
        if (!kStartCorrected) d = d + dot2_s16(correction, set1(load_quad(&x[r]->minus_zero)));
        F sum = fma(to_float(d) * scale, set1(x[r]->scale), sums[r][v]);
        if (From::affine) sum = fma(min, set1(x[r]->scaled_sum), sum);
        sums[r][v] = sum;
      }
    }
    t.ahead->step();
    values += group_bytes;
    prepared += V * From::bytes;
    KV_UNROLL
    for (int r = 0; r < R; ++r) ++x[r];
  }
  if (t.group_end == groups) finish(t, sums);
  else store_sums(t.partial, sums);
}

template <int Format, int P, bool IsPrepared>
struct Tiles {
  template <int R>
  static void run(const Tile& t) {
    quantised_tile<Format, R, P, IsPrepared>(t);
  }
};

template <int Format, int R, int P>
constexpr TileRange kPackedRange = {R, P, tile_of<Tiles<Format, P, false>, R>, nullptr, 0};
template <int Format, int R, int P>
constexpr TileRange kPreparedRange = {R, P, tile_of<Tiles<Format, P, true>, R>, prepare<Format, P>,
                                      P * kVectors * Prepared<Format>::bytes};

template <int Format>
constexpr FormatTiles kTiles = {kPackedRange<Format, kWideRows, kWidePanels>,
                                kPreparedRange<Format, kRows<Format>, kPanels>,
                                kPreparedRange<Format, kRows<Format>, 1>};

}  // namespace

const FormatTiles& quantised_tiles(int32_t format) {
  switch (format) {
    case KV_INT8: return kTiles<KV_INT8>;
    case KV_INT4: return kTiles<KV_INT4>;
    default: return kTiles<KV_INT4_AFFINE>;
  }
}

}  // namespace kvserve
