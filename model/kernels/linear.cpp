// The tiles behind linear.h, and how a product is cut into pieces.
#include "linear.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <utility>
#include <vector>

#include "pool_handle.h"

#define KV_UNROLL _Pragma("GCC unroll 32")

namespace kvserve {
namespace {

// Tile shapes: the accumulators must fit the registers.  Few rows take more panels at once, so
// that enough independent sums are in flight to hide the latency of each.
#if defined(KVSERVE_AVX512)
constexpr int kQuantRows = 4, kQuantPanels = 3, kQuantWideRows = 3, kQuantWidePanels = 4;
constexpr int kFloatRows = 6, kFloatPanels = 4, kFloatWideRows = 6, kFloatWidePanels = 4;
#elif defined(KVSERVE_AVX2)
constexpr int kQuantRows = 3, kQuantPanels = 1, kQuantWideRows = 1, kQuantWidePanels = 2;
constexpr int kFloatRows = 5, kFloatPanels = 1, kFloatWideRows = 2, kFloatWidePanels = 2;
#else
constexpr int kQuantRows = 2, kQuantPanels = 1, kQuantWideRows = 1, kQuantWidePanels = 1;
constexpr int kFloatRows = 3, kFloatPanels = 1, kFloatWideRows = 1, kFloatWidePanels = 1;
#endif

constexpr int64_t kPieceBytes = 20 * 1024;  // weights of one piece: microseconds, not more
constexpr int64_t kRowBlock = 96;           // activations that stay in a core's cache
constexpr int64_t kMostPanels = kQuantPanels;  // of a tile that sums in parts

// Weights that this thread will probably read next, asked for bit by bit while it computes.
struct Ahead {
  const uint8_t* at;
  int64_t lines;  // of 64 bytes, at each step

  KV_INLINE void step() {
    for (int64_t i = 0; i < lines; ++i, at += 64) __builtin_prefetch(at, 0, 2);
  }
};

struct Tile {
  const LinearJob* job;
  const Layout* layout;
  const uint8_t* panel;  // the first of the tile
  int64_t row;           // likewise
  int64_t column;        // first output
  int64_t group_begin, group_end;  // which part of the sums, for quantised weights
  const uint8_t* prepared;         // that part of the panels as Prepared lays it out
  float* partial;                  // sums from part to part, (rows, outputs of the tile)
  Ahead* ahead;
};

template <int R, int V>
KV_INLINE void finish(const Tile& t, F (&sums)[R][V]) {
  const kv_matrix& m = *t.job->matrix;
  KV_UNROLL
  for (int r = 0; r < R; ++r) {
    float* out = t.job->out + (t.row + r) * t.job->out_stride + t.column;
    KV_UNROLL
    for (int v = 0; v < V; ++v) {
      const int64_t left = m.out_features - t.column - v * W;
      if (left <= 0) break;
      F y = sums[r][v];
      if (m.bias) y = y + load_upto(m.bias + t.column + v * W, left);
      if (t.job->accumulate) y = load_upto(out + v * W, left) + y;
      store_upto(out + v * W, y, left);
    }
  }
}

template <int R, int V>
KV_INLINE void load_sums(const float* from, F (&sums)[R][V]) {
  KV_UNROLL
  for (int r = 0; r < R; ++r)
    KV_UNROLL
    for (int v = 0; v < V; ++v) sums[r][v] = load(from + (r * V + v) * W);
}
template <int R, int V>
KV_INLINE void store_sums(float* to, const F (&sums)[R][V]) {
  KV_UNROLL
  for (int r = 0; r < R; ++r)
    KV_UNROLL
    for (int v = 0; v < V; ++v) store(to + (r * V + v) * W, sums[r][v]);
}

// The even or the odd one of a pair of inputs, for one vector of outputs, as floats.
template <int Format, bool Odd>
KV_INLINE F load_weight(const uint8_t* at) {
  if (Format == KV_F32) return load_as<F>(at + (Odd ? kPanel * 4 : 0));
  const I both = load_as<I>(at);
  return (F)(Odd ? both & set1(int32_t(0xffff0000u)) : both << 16);
}

// sums += one input of all rows times its weights.
template <int Format, bool Odd, int R, int V>
KV_INLINE void add_input(F (&sums)[R][V], const uint8_t* at, int64_t panel_bytes, const float* x,
                         int64_t x_stride) {
  F w[V];
  KV_UNROLL
  for (int v = 0; v < V; ++v)
    w[v] = load_weight<Format, Odd>(at + v / kVectors * panel_bytes + v % kVectors * W * 4);
  KV_UNROLL
  for (int r = 0; r < R; ++r) {
    const F xr = set1(x[r * x_stride]);
    KV_UNROLL
    for (int v = 0; v < V; ++v) sums[r][v] = fma(w[v], xr, sums[r][v]);
  }
}

// Keeps the compiler from widening the odd weights early, beside the even ones: there are only
// registers for one of them.
#define KV_BARRIER asm volatile("" ::: "memory")

template <int Format, int R, int P>
void float_tile(const Tile& t) {
  constexpr int V = P * kVectors;
  const int64_t inputs = t.job->matrix->in_features;
  const int64_t panel_bytes = t.layout->panel_bytes;
  constexpr int64_t pair_bytes = kPanel * 4 * (Format == KV_F32 ? 2 : 1);
  const float* x = t.job->x + t.row * inputs;
  F sums[R][V] = {};
  const uint8_t* at = t.panel;
  int64_t k = 0;
  for (; k + 2 <= inputs; k += 2, at += pair_bytes) {
    add_input<Format, false>(sums, at, panel_bytes, x + k, inputs);
    KV_BARRIER;
    add_input<Format, true>(sums, at, panel_bytes, x + k + 1, inputs);
    KV_BARRIER;
  }
  if (k < inputs) add_input<Format, false>(sums, at, panel_bytes, x + k, inputs);
  finish(t, sums);
}

// ---- quantised weights ----
//
// With w = scale_w (q_w - excess) [+ min_w] and x = scale_x (q_x - zero), a group's sum is
//
//   scale_w scale_x D + min_w sum(x),   D = sum(q_w q_x) - zero totals - excess sum(q_x)
//
// where `totals` is the sum of the weights as signed numbers.  D is a whole number.

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

// A group's totals beside its excess, to meet minus_zero and minus_sum.
template <int Format>
KV_INLINE I correction_of(I totals) {
  return (totals & set1(int32_t(0xffff))) | set1(excess<Format>() << 16);
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

// dot += one line of weights (16 outputs x 4 inputs, or x 8 if Format has 4 bits) times ones.
template <int Format>
KV_INLINE I add_totals(I totals, I w) {
  const I ones = set1(int32_t(0x01010101)), mask = set1(int32_t(0x0f0f0f0f));
  if (Format == KV_INT8) return dot4_u8(totals, w, ones);
  return dot4_u4(dot4_u4(totals, w & mask, ones), (w >> 4) & mask, ones);
}

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

template <int Format, int P>
void prepare(const Layout& layout, const uint8_t* panel, int64_t group_begin, int64_t group_end,
             uint8_t* out) {
  using To = Prepared<Format>;
  const I mask = set1(int32_t(0x0f0f0f0f));
  for (int64_t g = group_begin; g < group_end; ++g) {
    KV_UNROLL
    for (int v = 0; v < P * kVectors; ++v, out += To::bytes) {
      const uint8_t* values = panel + layout.scale_bytes + g * layout.group_bytes;
      I totals = set1(-kGroup * excess<Format>());
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

// dots += the products of a group's activations with the weights, for each row and output; from
// packed weights also the totals on the way.
template <int Format, bool IsPrepared, int R, int V>
KV_INLINE void group_dots(const uint8_t* values, int64_t panel_bytes,
                          const QuantisedGroup* const (&x)[R], I (&dots)[R][V], I (&totals)[V]) {
  const I mask = set1(int32_t(0x0f0f0f0f));
  constexpr bool wide = Format == KV_INT8 || IsPrepared;  // a byte for each weight
  KV_UNROLL
  for (int line = 0; line < (wide ? 8 : 4); ++line) {
    I low[V], high[V];
    KV_UNROLL
    for (int v = 0; v < V; ++v) {
      const I w = Format != KV_INT8 && IsPrepared
                      ? load_as<I>(values + v * Prepared<Format>::bytes + line * W * 4)
                      : weight_bytes(values + line * 64, panel_bytes, v);
      if (!IsPrepared) totals[v] = add_totals<Format>(totals[v], w);
      low[v] = wide ? w : w & mask;
      high[v] = (w >> 4) & mask;
    }
    KV_UNROLL
    for (int r = 0; r < R; ++r) {
      const I x_low = set1(load_quad(x[r]->values + line * (wide ? 4 : 8)));
      KV_UNROLL
      for (int v = 0; v < V; ++v)
        dots[r][v] = Format == KV_INT8 ? dot4_u8(dots[r][v], low[v], x_low)
                                       : dot4_u4(dots[r][v], low[v], x_low);
      if (wide) continue;
      const I x_high = set1(load_quad(x[r]->values + line * 8 + 4));
      KV_UNROLL
      for (int v = 0; v < V; ++v) dots[r][v] = dot4_u4(dots[r][v], high[v], x_high);
    }
  }
}

// Few rows read the packed panels, so that the weights pass by only once; many read prepared ones.
template <int Format, int R, int P, bool IsPrepared>
void quantised_tile(const Tile& t) {
  constexpr int V = P * kVectors;
  using From = Prepared<Format>;
  const int64_t groups = t.job->quantised->groups, panel_bytes = t.layout->panel_bytes;
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
    x[r] = t.job->quantised->data + (t.row + r) * groups + t.group_begin;
  F sums[R][V] = {};
  if (t.group_begin > 0) load_sums(t.partial, sums);
  for (int64_t g = t.group_begin; g < t.group_end; ++g) {
    I dots[R][V] = {}, totals[V];
    KV_UNROLL
    for (int v = 0; v < V; ++v) {
      totals[v] = set1(-kGroup * excess<Format>());
      if (!IsPrepared) continue;
      const I correction = load_as<I>(prepared + v * From::bytes + From::correction);
      KV_UNROLL
      for (int r = 0; r < R; ++r)
        dots[r][v] = dot2_s16(correction, set1(load_quad(&x[r]->minus_zero)));
    }
    group_dots<Format, IsPrepared, R, V>(values, panel_bytes, x, dots, totals);
    KV_UNROLL
    for (int v = 0; v < V; ++v) {
      const uint16_t* s = scales_of<Format>(t.panel, panel_bytes, g, v);
      const uint8_t* p = prepared + v * From::bytes;
      const F scale = IsPrepared ? load_as<F>(p + From::scale) : load_half(s);
      F min = {};
      if (From::affine) min = IsPrepared ? load_as<F>(p + From::min) : load_half(s + kPanel);
      KV_UNROLL
      for (int r = 0; r < R; ++r) {
        I d = dots[r][v];
        if (!IsPrepared)
          d = d + dot2_s16(correction_of<Format>(totals[v]), set1(load_quad(&x[r]->minus_zero)));
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

using TileFunction = void (*)(const Tile&);
using PrepareFunction = void (*)(const Layout&, const uint8_t* panel, int64_t group_begin,
                                 int64_t group_end, uint8_t* out);

template <int Format, int R, int P, bool IsPrepared>
constexpr TileFunction tile_function() {
  if constexpr (Format == KV_F32 || Format == KV_BF16) return float_tile<Format, R, P>;
  else return quantised_tile<Format, R, P, IsPrepared>;
}

template <int Format, int P, bool IsPrepared, int... Index>
TileFunction pick(int rows, std::integer_sequence<int, Index...>) {
  static constexpr TileFunction table[] = {tile_function<Format, Index + 1, P, IsPrepared>()...};
  return table[rows - 1];
}

struct TileRange {
  int height;
  int panels;
  TileFunction (*of)(int rows);
  PrepareFunction prepare;  // null: the tile needs none
  int64_t prepared_bytes;   // of a group
};

template <int Format, int R, int P, bool IsPrepared>
constexpr TileRange tile_range() {
  constexpr auto of = [](int rows) {
    return pick<Format, P, IsPrepared>(rows, std::make_integer_sequence<int, R>());
  };
  if constexpr (IsPrepared)
    return {R, P, of, prepare<Format, P>, P * kVectors * Prepared<Format>::bytes};
  else
    return {R, P, of, nullptr, 0};
}

// The wide ones are for few rows.  A tile needs as many panels as it is wide.
struct FormatTiles {
  TileRange wide, usual, narrow;
};

template <int Format>
constexpr FormatTiles quantised_tiles() {
  return {tile_range<Format, kQuantWideRows, kQuantWidePanels, false>(),
          tile_range<Format, kQuantRows, kQuantPanels, true>(),
          tile_range<Format, kQuantRows, 1, true>()};
}
template <int Format>
constexpr FormatTiles float_tiles() {
  return {tile_range<Format, kFloatWideRows, kFloatWidePanels, false>(),
          tile_range<Format, kFloatRows, kFloatPanels, false>(),
          tile_range<Format, kFloatRows, 1, false>()};
}

constexpr FormatTiles kTiles[] = {float_tiles<KV_F32>(), float_tiles<KV_BF16>(),
                                  quantised_tiles<KV_INT8>(), quantised_tiles<KV_INT4>(),
                                  quantised_tiles<KV_INT4_AFFINE>()};

constexpr int64_t kPreparedBytes = 20 * 1024;
struct Scratch {
  alignas(64) uint8_t prepared[kPreparedBytes];
  alignas(64) float partial[kRowBlock * kMostPanels * kPanel];
};

// Some neighbouring panels of one job, for one block of rows.
struct Piece {
  const LinearJob* job;
  const Layout* layout;
  int64_t panel, panels_end;
  int64_t row_begin, row_end;

  const uint8_t* data() const {
    return static_cast<const uint8_t*>(job->matrix->data) + panel * layout->panel_bytes;
  }
  int64_t bytes() const { return (panels_end - panel) * layout->panel_bytes; }
};

void run_piece(const Piece& piece, const Piece& next) {
  const FormatTiles& tiles = kTiles[piece.job->matrix->format];
  const Layout& layout = *piece.layout;
  const int64_t rows = piece.row_end - piece.row_begin;
  const TileRange& best = rows <= tiles.wide.height ? tiles.wide : tiles.usual;
  const int64_t steps = ceil_div(piece.panels_end - piece.panel, best.panels) *
                        ceil_div(rows, best.height) * std::max<int64_t>(1, layout.groups);
  // Few rows read as fast as memory gives, which the processor foresees by itself.
  Ahead ahead{next.data(), best.prepare ? ceil_div(next.bytes(), 64 * steps) : 0};
  thread_local Scratch scratch;
  for (int64_t panel = piece.panel; panel < piece.panels_end;) {
    const int64_t left = piece.panels_end - panel;
    const TileRange& range = left >= best.panels            ? best
                             : left >= tiles.usual.panels ? tiles.usual
                                                          : tiles.narrow;
    const uint8_t* first = piece.data() + (panel - piece.panel) * layout.panel_bytes;
    // Prepared parts short enough to stay in the first cache until all rows have read them.
    const int64_t parts =
        range.prepare ? ceil_div(layout.groups, kPreparedBytes / range.prepared_bytes) : 1;
    for (int64_t part = 0; part < parts; ++part) {
      Tile tile{piece.job, &layout, first, piece.row_begin, panel * kPanel,
                layout.groups * part / parts, layout.groups * (part + 1) / parts,
                scratch.prepared, scratch.partial, &ahead};
      if (range.prepare)
        range.prepare(layout, first, tile.group_begin, tile.group_end, scratch.prepared);
      for (int64_t count = ceil_div(rows, range.height); count > 0; --count) {
        const int height = static_cast<int>(ceil_div(piece.row_end - tile.row, count));
        range.of(height)(tile);
        tile.row += height;
        tile.partial += height * range.panels * kPanel;
      }
    }
    panel += range.panels;
  }
}

// How the jobs of one phase are cut: each into blocks of panels, all into blocks of rows.
class Cut {
 public:
  Cut(const LinearJob* jobs, int job_count, int64_t rows)
      : jobs_(jobs), job_count_(job_count), rows_(rows) {
    const int64_t blocks = ceil_div(rows, kRowBlock);
    block_rows_ = ceil_div(ceil_div(rows, blocks), 12) * 12;
    for (int j = 0; j < job_count; ++j) {
      const kv_matrix& m = *jobs[j].matrix;
      Layout& l = layouts_[j] = layout_of(m.format, m.out_features, m.in_features);
      const FormatTiles& tiles = kTiles[m.format];
      const int64_t unit = block_rows() <= tiles.wide.height ? tiles.wide.panels : tiles.usual.panels;
      panels_[j] = std::max<int64_t>(1, kPieceBytes / (unit * std::max<int64_t>(1, l.panel_bytes))) * unit;
      first_[j] = per_block_;
      per_block_ += ceil_div(l.panels, panels_[j]);
    }
    count_ = per_block_ * ceil_div(rows, block_rows_);
  }
  int64_t count() const { return count_; }
  Piece piece(int64_t index) const {
    const int64_t row_begin = index / per_block_ * block_rows_, in_block = index % per_block_;
    int j = job_count_ - 1;
    while (first_[j] > in_block) --j;
    const int64_t panel = (in_block - first_[j]) * panels_[j];
    return {&jobs_[j], &layouts_[j], panel, std::min(layouts_[j].panels, panel + panels_[j]),
            row_begin, std::min(rows_, row_begin + block_rows_)};
  }

 private:
  int64_t block_rows() const { return std::min(rows_, block_rows_); }

  static constexpr int kMaxJobs = 8;
  const LinearJob* jobs_;
  int job_count_;
  int64_t rows_, block_rows_, per_block_ = 0, count_;
  Layout layouts_[kMaxJobs];
  int64_t panels_[kMaxJobs], first_[kMaxJobs];  // of a piece; of the job's pieces
};

}  // namespace

void run_linear(ThreadPool& pool, const LinearJob* jobs, int job_count, int64_t rows) {
  const Cut cut(jobs, job_count, rows);
  pool.run(cut.count(), [&](int64_t index, int) {
    run_piece(cut.piece(index), cut.piece(std::min(index + pool.size(), cut.count() - 1)));
  });
}

// ---- activations ----

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
    // Wide enough for the zero to fit 16 bits.
    const float range =
        std::max(most + minus_least, std::max(most, minus_least) * (1.0f / 120.0f));
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

}  // namespace kvserve

using namespace kvserve;

void kv_linear(kv_pool* pool, const kv_matrix* matrix, const float* x, int64_t rows, float* out,
               int64_t out_stride, int32_t accumulate) {
  if (rows <= 0) return;
  PoolCall call(pool);
  std::vector<uint8_t> memory;
  QuantisedRows quantised;
  if (is_quantised(matrix->format)) {
    memory.resize(QuantisedRows::bytes(rows, matrix->in_features));
    quantised.bind(memory.data(), matrix->in_features);
    call->run(rows, [&](int64_t row, int) {
      quantised.quantise_row(row, x + row * matrix->in_features, matrix->in_features);
    });
  }
  const LinearJob job{matrix, x, &quantised, out, out_stride, accumulate != 0};
  run_linear(*call, &job, 1, rows);
}
