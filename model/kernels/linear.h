// Linear layers over packed weights: y = x W^T + bias.
//
// Responsible for: cutting a phase of one or several products over the same rows into pieces, and
// for the contract that makes the server's answers reproducible: every output element is computed
// by one fixed sequence of floating-point operations (inputs in ascending order, one fused
// multiply-add each; or whole groups of 32 in ascending order), which depends on its own row and
// weights only.  Tile shapes, pieces and threads change where an element is computed, never how.
#pragma once

#include <cstdint>

#include "matrix.h"
#include "thread_pool.h"

namespace kvserve {

// 32 neighbouring activations of a row rounded to int8, x = scale * (q - zero), and all a tile
// needs to know of them, behind one pointer a row: a tile has no registers left for more.
// The zero point halves the step of values that are all of one sign.
struct QuantisedGroup {
  int8_t values[kGroup];  // q in -127..127; zero beyond the end of the row
  int16_t minus_zero;     // both corrections of a dot product are whole numbers, so that one
  int16_t minus_sum;      // integer operation makes them: minus the zero, and minus the sum of q
  float scale;
  float scaled_sum;       // sum of x as rounded: for weights with minima
};

// Rows of activations rounded once for all the matrices that read them.
struct QuantisedRows {
  int64_t groups = 0;
  QuantisedGroup* data = nullptr;  // (rows, groups)

  static int64_t bytes(int64_t rows, int64_t width) {
    return rows * ceil_div(width, kGroup) * static_cast<int64_t>(sizeof(QuantisedGroup));
  }
  void bind(void* memory, int64_t width) {
    groups = ceil_div(width, kGroup);
    data = static_cast<QuantisedGroup*>(memory);
  }
  void quantise_row(int64_t row, const float* x, int64_t width);
};

struct LinearJob {
  const kv_matrix* matrix;
  const float* x;                 // (rows, in_features), for float formats
  const QuantisedRows* quantised; // for quantised formats
  float* out;                     // (rows, out_stride)
  int64_t out_stride;
  bool accumulate;                // add to `out`
};

// All jobs in one phase of the pool.
void run_linear(ThreadPool& pool, const LinearJob* jobs, int job_count, int64_t rows);

}  // namespace kvserve
