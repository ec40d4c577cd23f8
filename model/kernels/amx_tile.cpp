// Tiles of tile.h over bfloat16 weights and activations, by the matrix registers of AMX.
//
// Such a register holds 16 rows of 64 bytes.  One product adds 16 rows x 32 inputs times 32 inputs
// x 16 outputs to 16 x 16 sums, where 32 inputs of a panel lie as a register wants them.  For each
// output the processor adds up the even and the odd inputs of the 32, one fused multiply-add each,
// then both and what was there (subnormal numbers count as zero), whatever its company.
#include "tile.h"

#if defined(KVSERVE_AMX)
#include <array>

namespace kvserve {
namespace {

constexpr int kHeight = 32, kPanels = 2;
constexpr int64_t kInputs = 32;                         // of one product
constexpr int64_t kWeightBytes = kInputs * kPanel * 2;  // likewise
constexpr int64_t kRowBlockBf16 = 384;

// What ldtilecfg reads.  Registers 0 to 3: sums of the quarters of a tile; 4 and 5: activations of
// the upper and the lower rows; 6 and 7: weights of both panels.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  constexpr TileConfig() = default;
  explicit constexpr TileConfig(int height) {
    const int upper = height < 16 ? height : 16, lower = height - upper;
    set(0, upper), set(1, upper), set(4, upper);
    if (lower > 0) set(2, lower), set(3, lower), set(5, lower);
    set(6, 16), set(7, 16);
  }
  constexpr void set(int index, int count) {
    rows[index] = static_cast<uint8_t>(count);
    row_bytes[index] = 64;
  }
};

// In memory that is never written: GCC 12's _tile_loadconfig names only 8 bytes as its input.
constexpr std::array<TileConfig, kHeight + 1> all_configs() {
  std::array<TileConfig, kHeight + 1> configs{};
  for (int height = 1; height <= kHeight; ++height) configs[height] = TileConfig(height);
  return configs;
}
constexpr std::array<TileConfig, kHeight + 1> kConfigs = all_configs();

// Asking costs little, setting empties the processor's pipelines.
KV_INLINE void configure(int height) {
  alignas(64) TileConfig now;
  _tile_storeconfig(&now);
  asm volatile("" : "+m"(now));  // as above: the intrinsic names only 8 bytes as its output
  if (std::memcmp(&now, &kConfigs[height], sizeof now) != 0) _tile_loadconfig(&kConfigs[height]);
}

// Adds 32 inputs to the sums.
template <int Panels, bool HasLower>
KV_INLINE void add_product(const uint16_t* x, int64_t stride, const uint8_t* w,
                           int64_t panel_bytes) {
  _tile_loadd(4, x, stride * 2);
  _tile_loadd(6, w, 64);
  _tile_dpbf16ps(0, 4, 6);
  if (Panels == 2) {
    _tile_loadd(7, w + panel_bytes, 64);
    _tile_dpbf16ps(1, 4, 7);
  }
  if (!HasLower) return;
  _tile_loadd(5, x + 16 * stride, stride * 2);
  _tile_dpbf16ps(2, 5, 6);
  if (Panels == 2) _tile_dpbf16ps(3, 5, 7);
}

template <int Panels, bool HasLower>
KV_INLINE void multiply(const Tile& t, float* sums) {
  const Bfloat16Rows& rows = t.job->input->rounded();
  const int64_t inputs = t.job->matrix->in_features, panel_bytes = t.layout->panel_bytes;
  const uint16_t* x = rows.data + t.row * rows.stride;
  const uint8_t* w = t.panel;
  _tile_zero(0);
  if (Panels == 2) _tile_zero(1);
  if (HasLower) _tile_zero(2);
  if (HasLower && Panels == 2) _tile_zero(3);
  int64_t k = 0;
  for (; k + kInputs <= inputs; k += kInputs, x += kInputs, w += kWeightBytes)
    add_product<Panels, HasLower>(x, rows.stride, w, panel_bytes);
  if (k < inputs) {
    alignas(64) uint8_t padded[Panels * kWeightBytes] = {};
    for (int p = 0; p < Panels; ++p)
      std::memcpy(padded + p * kWeightBytes, w + p * panel_bytes, ceil_div(inputs - k, 2) * 64);
    asm volatile("" ::: "memory");  // GCC 12's _tile_loadd does not say that it reads memory
    add_product<Panels, HasLower>(x, rows.stride, padded, kWeightBytes);
  }
  constexpr int64_t stride = Panels * kPanel;
  _tile_stored(0, sums, stride * 4);
  if (Panels == 2) _tile_stored(1, sums + kPanel, stride * 4);
  if (HasLower) _tile_stored(2, sums + 16 * stride, stride * 4);
  if (HasLower && Panels == 2) _tile_stored(3, sums + 16 * stride + kPanel, stride * 4);
}

template <int Panels>
void amx_tile(const Tile& t) {
  alignas(64) float all[kHeight * Panels * kPanel];
  configure(t.height);
  if (t.height > 16) multiply<Panels, true>(t, all);
  else multiply<Panels, false>(t, all);
  Tile one = t;
  for (int r = 0; r < t.height; ++r, ++one.row) {
    F sums[1][Panels];
    load_sums(all + r * Panels * kPanel, sums);
    finish(one, sums);
  }
}

template <int Panels>
TileFunction tile_for(int) {
  return amx_tile<Panels>;
}
template <int Panels>
constexpr TileRange kRange = {kHeight, Panels, tile_for<Panels>, nullptr, 0};
constexpr FormatTiles kTiles = {kRange<kPanels>, kRange<kPanels>, kRange<1>, kRowBlockBf16};

}  // namespace

const FormatTiles& amx_tiles() { return kTiles; }

}  // namespace kvserve

#endif
