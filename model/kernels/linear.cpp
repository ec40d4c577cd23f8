// How the products of linear.h are cut into pieces, and a piece into tiles.
#include "linear.h"

#include <algorithm>
#include <vector>

#include "pool_handle.h"
#include "tile.h"

namespace kvserve {
namespace {

constexpr int64_t kPieceBytes = 20 * 1024;     // weights of one piece: microseconds, not more
constexpr int64_t kPreparedBytes = 20 * 1024;  // of a tile's panels, likewise

const FormatTiles& tiles_of(int32_t format) {
#if defined(KVSERVE_AMX)
  if (format == KV_BF16) return amx_tiles();
#endif
  return is_quantised(format) ? quantised_tiles(format) : float_tiles(format);
}

struct Scratch {
  alignas(64) uint8_t prepared[kPreparedBytes];
  alignas(64) float partial[kRowBlock * kMostPartialPanels * kPanel];
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
  const FormatTiles& tiles = tiles_of(piece.job->matrix->format);
  const Layout& layout = *piece.layout;
  const int64_t rows = piece.row_end - piece.row_begin;
  const TileRange& best = tiles.best(rows);
  const int64_t steps = ceil_div(piece.panels_end - piece.panel, best.panels) *
                        ceil_div(rows, best.height) * std::max<int64_t>(1, layout.groups);
  // Not every processor foresees by itself what few rows read, however plain their path.
  Ahead ahead{next.data(), ceil_div(next.bytes(), 64 * steps)};
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
      Tile tile{piece.job, &layout, first, piece.row_begin, 0, panel * kPanel,
                layout.groups * part / parts, layout.groups * (part + 1) / parts,
                scratch.prepared, scratch.partial, &ahead};
      if (range.prepare)
        range.prepare(layout, first, tile.group_begin, tile.group_end, scratch.prepared);
      for (int64_t count = ceil_div(rows, range.height); count > 0; --count) {
        tile.height = static_cast<int>(ceil_div(piece.row_end - tile.row, count));
        range.of(tile.height)(tile);
        tile.row += tile.height;
        tile.partial += tile.height * range.panels * kPanel;
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
    int64_t most_rows = rows, height = 1;
    for (int j = 0; j < job_count; ++j) {
      const FormatTiles& tiles = tiles_of(jobs[j].matrix->format);
      most_rows = std::min(most_rows, tiles.row_block);
      height = std::max<int64_t>(height, tiles.usual.height);
    }
    const int64_t even = ceil_div(rows, ceil_div(rows, most_rows));
    block_rows_ = std::min(most_rows, ceil_div(even, height) * height);
    for (int j = 0; j < job_count; ++j) {
      const kv_matrix& m = *jobs[j].matrix;
      Layout& l = layouts_[j] = layout_of(m.format, m.out_features, m.in_features);
      const int64_t unit = tiles_of(m.format).best(block_rows_).panels;
      const int64_t bytes = std::max<int64_t>(1, unit * l.panel_bytes);
      panels_[j] = std::max<int64_t>(1, kPieceBytes / bytes) * unit;
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
  static constexpr int kMaxJobs = 8;
  const LinearJob* jobs_;
  int job_count_;
  int64_t rows_, block_rows_, per_block_ = 0, count_;
  Layout layouts_[kMaxJobs];
  int64_t panels_[kMaxJobs], first_[kMaxJobs];  // of a piece; of the job's pieces
};

// The same for any number of jobs that each have rows of their own.
class GroupedCut {
 public:
  GroupedCut(const GroupedJob* jobs, int64_t job_count) : jobs_(jobs) {
    parts_.reserve(job_count);
    for (int64_t j = 0; j < job_count; ++j) {
      const kv_matrix& m = *jobs[j].job.matrix;
      const FormatTiles& tiles = tiles_of(m.format);
      const int64_t rows = jobs[j].row_end - jobs[j].row_begin, height = tiles.usual.height;
      const int64_t even = ceil_div(rows, ceil_div(rows, tiles.row_block));
      Part part{};
      part.first = count_;
      part.layout = layout_of(m.format, m.out_features, m.in_features);
      part.block_rows = std::min(tiles.row_block, ceil_div(even, height) * height);
      const int64_t unit = tiles.best(std::min(rows, part.block_rows)).panels;
      const int64_t bytes = std::max<int64_t>(1, unit * part.layout.panel_bytes);
      part.panels = std::max<int64_t>(1, kPieceBytes / bytes) * unit;
      part.per_block = ceil_div(part.layout.panels, part.panels);
      count_ += part.per_block * ceil_div(rows, part.block_rows);
      parts_.push_back(part);
    }
  }
  int64_t count() const { return count_; }
  Piece piece(int64_t index) const {
    const auto after = std::upper_bound(parts_.begin(), parts_.end(), index,
                                        [](int64_t i, const Part& p) { return i < p.first; });
    const Part& part = *(after - 1);
    const GroupedJob& job = jobs_[after - 1 - parts_.begin()];
    const int64_t block = (index - part.first) / part.per_block;
    const int64_t panel = (index - part.first) % part.per_block * part.panels;
    const int64_t row = job.row_begin + block * part.block_rows;
    return {&job.job, &part.layout, panel, std::min(part.layout.panels, panel + part.panels),
            row, std::min(job.row_end, row + part.block_rows)};
  }

 private:
  struct Part {
    int64_t first;  // of its pieces
    Layout layout;
    int64_t panels, per_block, block_rows;
  };
  const GroupedJob* jobs_;
  std::vector<Part> parts_;
  int64_t count_ = 0;
};

}  // namespace

void run_grouped_linear(ThreadPool& pool, const GroupedJob* jobs, int64_t job_count) {
  const GroupedCut cut(jobs, job_count);
  pool.run(cut.count(), [&](int64_t index, int) {
    run_piece(cut.piece(index), cut.piece(std::min(index + pool.size(), cut.count() - 1)));
  });
}

void run_linear(ThreadPool& pool, const LinearJob* jobs, int job_count, int64_t rows) {
  const Cut cut(jobs, job_count, rows);
  pool.run(cut.count(), [&](int64_t index, int) {
    run_piece(cut.piece(index), cut.piece(std::min(index + pool.size(), cut.count() - 1)));
  });
}

}  // namespace kvserve

using namespace kvserve;

void kv_linear(kv_pool* pool, const kv_matrix* matrix, const float* x, int64_t rows, float* out,
               int64_t out_stride, int32_t accumulate) {
  if (rows <= 0) return;
  PoolCall call(pool);
  LinearInput input;
  input.prepare(rows, matrix->in_features, Forms(*matrix));
  call->run(rows, [&](int64_t row, int) {
    std::copy_n(x + row * matrix->in_features, matrix->in_features, input.row(row));
    input.finish_row(row);
  });
  const LinearJob job{matrix, &input, out, out_stride, accumulate != 0};
  run_linear(*call, &job, 1, rows);
}
