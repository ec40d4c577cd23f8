// The small operations between the products, one row of the flat batch at a time.
//
// Responsible for: norms, rotary embedding, activations and cache writes.  A row is always computed
// whole by one thread and in one order, so its bits depend on nothing else.
#pragma once

#include <cstdint>

#include "kvserve.h"

namespace kvserve {

void rms_norm_row(const float* x, const float* weight, int64_t width, float epsilon, float* out);
void layer_norm_row(const float* x, const float* weight, const float* bias, int64_t width,
                    float epsilon, float* out);
// out = act(gate) * up, or act(gate) if `up` is null.
void activation_row(int32_t activation, const float* gate, const float* up, int64_t width,
                    float* out);
// (a, b) -> (a cos - b sin, b cos + a sin) for the two halves a and b of a head.
void rotate_head(float* x, int64_t half, const float* cosines, const float* sines);
// The cosines and sines of a position, times `magnitude`; the angles are float32 products.
void rotary_angles(int64_t position, const float* frequencies, int64_t half, float magnitude,
                   float* cosines, float* sines);
// Asks for the lines that cache_write_row will write: a key is spread over many.
void prefetch_cache_row(const kv_cache_layer& cache, int64_t slot);
void cache_write_row(const kv_cache_layer& cache, const float* k, const float* v, int64_t slot);

}  // namespace kvserve
