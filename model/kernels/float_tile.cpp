// Tiles of tile.h over float32 and bfloat16 weights.
#include "tile.h"

namespace kvserve {
namespace {

// Tile shapes: the accumulators must fit the registers.
#if defined(KVSERVE_AVX512)
constexpr int kRows = 6, kPanels = 4, kWideRows = 6, kWidePanels = 4;
#elif defined(KVSERVE_AVX2)
constexpr int kRows = 5, kPanels = 1, kWideRows = 2, kWidePanels = 2;
#else
constexpr int kRows = 3, kPanels = 1, kWideRows = 1, kWidePanels = 1;
#endif

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
  const float* x = t.job->input->floats() + t.row * inputs;
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

template <int Format, int P>
struct Tiles {
  template <int R>
  static void run(const Tile& t) {
    float_tile<Format, R, P>(t);
  }
};

template <int Format, int R, int P>
constexpr TileRange kRange = {R, P, tile_of<Tiles<Format, P>, R>, nullptr, 0};

template <int Format>
constexpr FormatTiles kTiles = {kRange<Format, kWideRows, kWidePanels>,
                                kRange<Format, kRows, kPanels>, kRange<Format, kRows, 1>};

}  // namespace

const FormatTiles& float_tiles(int32_t format) {
  return format == KV_F32 ? kTiles<KV_F32> : kTiles<KV_BF16>;
}

}  // namespace kvserve
