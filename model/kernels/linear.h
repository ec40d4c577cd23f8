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

// Rows of activations rounded to int8, one scale per row and group of 32 inputs.  Made once for
// all the matrices that read the same rows.
struct QuantisedRows {
  int64_t groups = 0;
  int8_t* values = nullptr;         // (rows, groups * 32), the last group padded with zeros
  float* scales = nullptr;          // (rows, groups)
  int32_t* minus_sums = nullptr;    // (rows, groups), minus the sum of the group's values
  float* scaled_sums = nullptr;     // (rows, groups), scale times the sum: for weights with minima

  static int64_t bytes(int64_t rows, int64_t width);
  // Lays the arrays out in `memory`, bytes(rows, width) of it, 64-byte aligned.
  void bind(void* memory, int64_t rows, int64_t width);
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
