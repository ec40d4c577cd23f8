// Linear layers over packed weights: y = x W^T + bias.
//
// Responsible for: cutting a phase of one or several products over the same rows into pieces, and
// for the contract that makes the server's answers reproducible: every output element is computed
// by one fixed sequence of floating-point operations (inputs in ascending order, one fused
// multiply-add each; or whole groups of 32 in ascending order; or as amx_tile.cpp says), which
// depends on its own row and weights only.  Tile shapes, pieces and threads change where an element
// is computed, never how.
#pragma once

#include <cstdint>

#include "linear_input.h"
#include "matrix.h"
#include "thread_pool.h"

namespace kvserve {

struct LinearJob {
  const kv_matrix* matrix;
  const LinearInput* input;
  float* out;  // (rows, out_stride)
  int64_t out_stride;
  bool accumulate;  // add to `out`
};

// A job over some of the rows of its input and output.
struct GroupedJob {
  LinearJob job;
  int64_t row_begin, row_end;
};

// All jobs in one phase of the pool.
void run_grouped_linear(ThreadPool& pool, const GroupedJob* jobs, int64_t job_count);
void run_linear(ThreadPool& pool, const LinearJob* jobs, int job_count, int64_t rows);

}  // namespace kvserve
