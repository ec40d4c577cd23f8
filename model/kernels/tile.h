// One tile of a product: some rows times some neighbouring panels, in registers.
//
// Responsible for: what the tiles of all formats share, and the table that run_linear picks from.
#pragma once

#include <utility>

#include "linear.h"

namespace kvserve {

constexpr int64_t kMostPartialPanels = 3;  // of a tile that sums in parts
constexpr int64_t kRowBlock = 96;          // of rows whose activations stay in a core's cache

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
  int height;            // rows
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

using TileFunction = void (*)(const Tile&);
using PrepareFunction = void (*)(const Layout&, const uint8_t* panel, int64_t group_begin,
                                 int64_t group_end, uint8_t* out);

// Tiles of one width and up to `height` rows.
struct TileRange {
  int height;
  int panels;
  TileFunction (*of)(int rows);
  PrepareFunction prepare;  // null: the tile needs none
  int64_t prepared_bytes;   // of a group
};

// The wide ones are for few rows.  A tile needs as many panels as it is wide.
struct FormatTiles {
  TileRange wide, usual, narrow;
  int64_t row_block = kRowBlock;  // at most so many rows run through one piece

  const TileRange& best(int64_t rows) const { return rows <= wide.height ? wide : usual; }
};

template <class Tiles, int... Index>
TileFunction pick_tile(int rows, std::integer_sequence<int, Index...>) {
  static constexpr TileFunction table[] = {&Tiles::template run<Index + 1>...};
  return table[rows - 1];
}
// Tiles::run<R> for R = rows, at most Height.
template <class Tiles, int Height>
TileFunction tile_of(int rows) {
  return pick_tile<Tiles>(rows, std::make_integer_sequence<int, Height>());
}

const FormatTiles& float_tiles(int32_t format);      // float_tile.cpp
const FormatTiles& quantised_tiles(int32_t format);  // quantised_tile.cpp
#if defined(KVSERVE_AMX)
const FormatTiles& amx_tiles();  // bfloat16 times bfloat16: amx_tile.cpp
#endif

}  // namespace kvserve
