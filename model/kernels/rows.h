// run_rows: a phase of the pool over rows that need each other for nothing.
#pragma once

#include <algorithm>
#include <cstdint>

#include "matrix.h"
#include "thread_pool.h"

namespace kvserve {

// Enough values in a piece that handing it out does not cost more than the piece.
template <class Body>
void run_rows(ThreadPool& pool, int64_t rows, int64_t width, Body body) {
  const int64_t step = std::max<int64_t>(1, 4096 / std::max<int64_t>(1, width));
  pool.run(ceil_div(rows, step), [&](int64_t piece, int) {
    for (int64_t r = piece * step; r < std::min(rows, (piece + 1) * step); ++r) body(r);
  });
}

}  // namespace kvserve
