// kv_model: a whole decoder in one call.
//
// Responsible for: the order of the operations and the memory between them.  A Python call for
// each operation would cost more than reading the weights it works on.
//
// Between two products lies one phase over rows that does all that needs a whole row and nothing
// else: residual norm, norm, and rounding to int8 once for all the products that follow.
#include <algorithm>
#include <vector>

#include "attention.h"
#include "buffer.h"
#include "elementwise.h"
#include "experts.h"
#include "linear.h"
#include "linear_input.h"
#include "matrix.h"
#include "pool_handle.h"
#include "rows.h"
#include "simd.h"
#include "vmath.h"

namespace kvserve {
namespace {

// The first thing wrong with a step's indices, numbered as in kvserve.h; 0 if nothing is.
int32_t check_step(const kv_model_spec& spec, const kv_step& step) {
  const auto outside = [](int64_t i, int64_t count) { return i < 0 || i >= count; };
  const int64_t block_size = step.first_layer.block_size;
  const int64_t positions =
      spec.position_embedding.data ? spec.position_embedding.out_features : INT64_MAX;
  for (int64_t i = 0; i < step.tokens; ++i) {
    if (outside(step.input_ids[i], spec.embedding.out_features)) return 1;
    if (outside(step.positions[i], positions)) return 2;
    if (outside(step.slots[i], step.blocks * block_size)) return 3;
  }
  const kv_batch& batch = step.batch;
  if (batch.query_starts[0] != 0 || batch.query_starts[batch.requests] != step.tokens) return 4;
  for (int64_t b = 0; b < batch.requests; ++b) {
    const int64_t queries = batch.query_starts[b + 1] - batch.query_starts[b];
    const int64_t blocks = ceil_div(batch.key_lengths[b], block_size);
    if (queries < 0 || batch.key_lengths[b] < queries || blocks > batch.max_blocks) return 4;
    for (int64_t i = 0; i < blocks; ++i)
      if (outside(batch.block_table[b * batch.max_blocks + i], step.blocks)) return 5;
  }
  return 0;
}

void add_row(float* x, const float* y, int64_t width) {
  for (int64_t i = 0; i < width; i += W)
    store_upto(x + i, load_upto(x + i, width - i) + load_upto(y + i, width - i), width - i);
}

// x += factor * y
void add_scaled_row(float* x, const float* y, float factor, int64_t width) {
  for (int64_t i = 0; i < width; i += W) {
    const int64_t n = width - i;
    store_upto(x + i, fma(load_upto(y + i, n), set1(factor), load_upto(x + i, n)), n);
  }
}

// Factor and soft cap of some logits.
void finish_logits(float* x, float factor, float cap, int64_t width) {
  for (int64_t i = 0; i < width; i += W) {
    const int64_t n = width - i;
    F y = load_upto(x + i, n) * set1(factor);
    if (cap > 0.0f) y = tanh(y / set1(cap)) * set1(cap);
    store_upto(x + i, y, n);
  }
}

}  // namespace
}  // namespace kvserve

using namespace kvserve;

struct kv_model {
  explicit kv_model(const kv_model_spec& given)
      : spec(given),
        layers(given.layers, given.layers + given.layer_count),
        rotaries(given.rotaries, given.rotaries + given.rotary_count) {}

  void forward(ThreadPool& pool, const kv_step& step, float* hidden);
  void logits(ThreadPool& pool, const float* hidden, int64_t rows, float* out);

  const kv_model_spec spec;

 private:
  void plan(const kv_step& step);
  const AttentionPlan& plan_for(int64_t window) const;
  void embed(ThreadPool& pool, const kv_step& step, float* x);
  void attend(ThreadPool& pool, const kv_step& step, int64_t index, float* x);
  void run_mlp(ThreadPool& pool, int64_t tokens, const kv_layer& layer, float* x);
  void place_heads(const kv_step& step, const kv_layer& layer, const kv_cache_layer& cache,
                   int64_t row, float* qkv);
  void norm_row(const kv_norm& norm, const float* x, float* out) const;
  // Whether the last product of a block adds to the residual by itself.
  bool adds_directly(const kv_norm& out_norm) const {
    return !out_norm.weight && spec.residual_scale == 1.0;
  }
  // Adds what was left in `added`, if anything, after its norm; then readies the rows for the next
  // product, if there is one (`next`), after the norm before it.
  void finish_block(ThreadPool& pool, int64_t tokens, const kv_norm* out_norm,
                    const kv_norm* next, Forms forms, float* x);

  std::vector<kv_layer> layers;
  std::vector<kv_rotary_spec> rotaries;
  std::vector<AttentionPlan> plans;  // one per window length
  AttentionScratch scratch;
  ExpertsRun experts_run;
  LinearInput normed, attended, activated, final_rows;
  Buffer qkv_memory, added_memory, hidden_memory, angle_memory;
  float *added = nullptr, *angles = nullptr;  // angles: (rotaries, tokens, cosines then sines)
};

void kv_model::norm_row(const kv_norm& norm, const float* x, float* out) const {
  const float epsilon = static_cast<float>(spec.norm_epsilon);
  if (spec.is_layer_norm)
    layer_norm_row(x, norm.weight, norm.bias, spec.hidden_size, epsilon, out);
  else
    rms_norm_row(x, norm.weight, spec.hidden_size, epsilon, out);
}

void kv_model::plan(const kv_step& step) {
  plans.resize(0);
  for (const kv_layer& layer : layers) {
    const bool known = std::any_of(plans.begin(), plans.end(), [&](const AttentionPlan& p) {
      return p.window == layer.window;
    });
    if (known) continue;
    plans.emplace_back();
    plans.back().build(step.batch, spec.heads, spec.kv_heads, layer.window);
  }
}

const AttentionPlan& kv_model::plan_for(int64_t window) const {
  return *std::find_if(plans.begin(), plans.end(),
                       [&](const AttentionPlan& p) { return p.window == window; });
}

void kv_model::embed(ThreadPool& pool, const kv_step& step, float* x) {
  const int64_t width = spec.hidden_size, half = spec.head_size / 2;
  angles = angle_memory.reserve(static_cast<int64_t>(rotaries.size()) * step.tokens * 2 * half);
  run_rows(pool, step.tokens, width * 4, [&](int64_t r) {
    float* row = x + r * width;
    gather_one_row(spec.embedding, step.input_ids[r], static_cast<float>(spec.embedding_scale),
                   row);
    if (spec.position_embedding.data) {
      float* place = added + r * width;
      gather_one_row(spec.position_embedding, step.positions[r], 1.0f, place);
      add_row(row, place, width);
    }
    for (size_t i = 0; i < rotaries.size(); ++i) {
      float* at = angles + (static_cast<int64_t>(i) * step.tokens + r) * 2 * half;
      rotary_angles(step.positions[r], rotaries[i].frequencies, rotaries[i].count,
                    static_cast<float>(rotaries[i].magnitude), at, at + half);
    }
  });
}

void kv_model::finish_block(ThreadPool& pool, int64_t tokens, const kv_norm* out_norm,
                            const kv_norm* next, Forms forms, float* x) {
  const int64_t width = spec.hidden_size;
  const float residual_scale = static_cast<float>(spec.residual_scale);
  if (next) normed.prepare(tokens, width, forms);
  run_rows(pool, tokens, width, [&](int64_t r) {
    float* row = x + r * width;
    if (out_norm) {
      float* own = added + r * width;
      if (out_norm->weight) norm_row(*out_norm, own, own);
      if (residual_scale == 1.0f) add_row(row, own, width);
      else add_scaled_row(row, own, residual_scale, width);
    }
    if (!next) return;
    if (next->weight) norm_row(*next, row, normed.row(r));
    else std::copy_n(row, width, normed.row(r));
    normed.finish_row(r);
  });
}

void kv_model::place_heads(const kv_step& step, const kv_layer& layer,
                           const kv_cache_layer& cache, int64_t row, float* qkv) {
  const int64_t head_size = spec.head_size, half = head_size / 2;
  const float epsilon = static_cast<float>(spec.norm_epsilon);
  const int64_t turned = layer.rotary < 0 ? 0 : rotaries[layer.rotary].count;
  prefetch_cache_row(cache, step.slots[row]);
  const float* cosines =
      layer.rotary < 0 ? nullptr : angles + (layer.rotary * step.tokens + row) * 2 * half;
  float* k = qkv + spec.heads * head_size;
  const bool of_heads = layer.q_norm.weight && !spec.normalises_rows;
  if (layer.q_norm.weight && spec.normalises_rows) {
    rms_norm_row(qkv, layer.q_norm.weight, spec.heads * head_size, epsilon, qkv);
    rms_norm_row(k, layer.k_norm.weight, spec.kv_heads * head_size, epsilon, k);
  }
  for (int64_t h = 0; h < spec.heads + spec.kv_heads; ++h) {
    float* head = qkv + h * head_size;
    const kv_norm& norm = h < spec.heads ? layer.q_norm : layer.k_norm;
    if (of_heads) rms_norm_row(head, norm.weight, head_size, epsilon, head);
    if (cosines) rotate_head(head, turned, cosines, cosines + half);
  }
  cache_write_row(cache, k, k + spec.kv_heads * head_size, step.slots[row]);
}

void kv_model::attend(ThreadPool& pool, const kv_step& step, int64_t index, float* x) {
  const kv_layer& layer = layers[index];
  const int64_t q_width = spec.heads * spec.head_size, kv_width = spec.kv_heads * spec.head_size;
  const int64_t stride = q_width + 2 * kv_width, tokens = step.tokens;
  kv_cache_layer cache = step.first_layer;
  cache.keys = static_cast<char*>(cache.keys) + index * step.layer_bytes;
  cache.values = static_cast<char*>(cache.values) + index * step.layer_bytes;

  float* qkv = qkv_memory.reserve(tokens * stride);
  const LinearJob jobs[] = {{&layer.q, &normed, qkv, stride, false},
                            {&layer.k, &normed, qkv + q_width, stride, false},
                            {&layer.v, &normed, qkv + q_width + kv_width, stride, false}};
  run_linear(pool, jobs, 3, tokens);
  run_rows(pool, tokens, 2 * stride,
           [&](int64_t r) { place_heads(step, layer, cache, r, qkv + r * stride); });

  attended.prepare(tokens, q_width, Forms(layer.o));
  run_attention(pool, plan_for(layer.window), scratch,
                {&cache, &step.batch, qkv, stride, spec.heads,
                 static_cast<float>(spec.attention_scale), static_cast<float>(spec.attention_cap),
                 layer.sinks, attended.floats(), q_width});
  if (attended.is_rounded())
    run_rows(pool, tokens, q_width, [&](int64_t r) { attended.finish_row(r); });
  const bool direct = adds_directly(layer.attention_out);
  const LinearJob out{&layer.o, &attended, direct ? x : added, spec.hidden_size, direct};
  run_linear(pool, &out, 1, tokens);
}

void kv_model::run_mlp(ThreadPool& pool, int64_t tokens, const kv_layer& layer, float* x) {
  const kv_mlp& mlp = layer.mlp;
  const int64_t width = spec.intermediate_size;
  const bool gated = mlp.gate.data != nullptr;
  const int64_t stride = gated ? 2 * width : width;
  float* inner = hidden_memory.reserve(tokens * stride);
  float* up = gated ? inner + width : inner;
  LinearJob jobs[2] = {{&mlp.up, &normed, up, stride, false}};
  if (gated) jobs[1] = {&mlp.gate, &normed, inner, stride, false};
  run_linear(pool, jobs, gated ? 2 : 1, tokens);
  activated.prepare(tokens, width, Forms(mlp.down));
  run_rows(pool, tokens, 2 * width, [&](int64_t r) {
    activation_row(spec.activation, inner + r * stride, gated ? up + r * stride : nullptr, width,
                   activated.row(r));
    activated.finish_row(r);
  });
  const bool direct = adds_directly(layer.mlp_out);
  const LinearJob out{&mlp.down, &activated, direct ? x : added, spec.hidden_size, direct};
  run_linear(pool, &out, 1, tokens);
}

void kv_model::forward(ThreadPool& pool, const kv_step& step, float* x) {
  const auto attention_forms = [](const kv_layer& l) { return Forms(l.q, l.k, l.v); };
  const auto mlp_forms = [](const kv_layer& l) {
    return l.experts ? expert_forms(*l.experts) : Forms(l.mlp.up, l.mlp.gate);
  };
  // The norm of what is in `added`; null if the product has added it.
  const auto left = [&](const kv_norm& norm) { return adds_directly(norm) ? nullptr : &norm; };
  added = added_memory.reserve(step.tokens * spec.hidden_size);
  plan(step);
  embed(pool, step, x);
  finish_block(pool, step.tokens, nullptr, &layers[0].input, attention_forms(layers[0]), x);
  for (size_t i = 0; i < layers.size(); ++i) {
    const kv_layer& layer = layers[i];
    const kv_layer* next = i + 1 < layers.size() ? &layers[i + 1] : nullptr;
    attend(pool, step, static_cast<int64_t>(i), x);
    finish_block(pool, step.tokens, left(layer.attention_out), &layer.before_mlp,
                 mlp_forms(layer), x);
    if (layer.experts)
      experts_run.run(pool, *layer.experts, spec.activation, normed, step.tokens,
                      spec.hidden_size, added);
    else
      run_mlp(pool, step.tokens, layer, x);
    const kv_norm* mlp_left = layer.experts ? &layer.mlp_out : left(layer.mlp_out);
    if (next || mlp_left)
      finish_block(pool, step.tokens, mlp_left, next ? &next->input : nullptr,
                   next ? attention_forms(*next) : Forms(), x);
  }
}

void kv_model::logits(ThreadPool& pool, const float* hidden, int64_t rows, float* out) {
  final_rows.prepare(rows, spec.hidden_size, Forms(spec.output));
  run_rows(pool, rows, spec.hidden_size, [&](int64_t r) {
    norm_row(spec.final, hidden + r * spec.hidden_size, final_rows.row(r));
    final_rows.finish_row(r);
  });
  const int64_t width = spec.output.out_features;
  const LinearJob job{&spec.output, &final_rows, out, width, false};
  run_linear(pool, &job, 1, rows);
  if (spec.logit_scale == 1.0 && spec.logit_cap == 0.0) return;
  constexpr int64_t kStretch = 4096;
  const int64_t stretches = ceil_div(width, kStretch);
  pool.run(rows * stretches, [&](int64_t piece, int) {
    const int64_t begin = piece % stretches * kStretch;
    finish_logits(out + piece / stretches * width + begin, static_cast<float>(spec.logit_scale),
                  static_cast<float>(spec.logit_cap), std::min(kStretch, width - begin));
  });
}

kv_model* kv_model_create(const kv_model_spec* spec) { return new kv_model(*spec); }

void kv_model_destroy(kv_model* model) { delete model; }

int32_t kv_model_forward(kv_model* model, kv_pool* pool, const kv_step* step, float* hidden) {
  PoolCall call(pool);
  const int32_t error = check_step(model->spec, *step);
  if (error == 0 && step->tokens > 0) model->forward(*call, *step, hidden);
  return error;
}

void kv_model_logits(kv_model* model, kv_pool* pool, const float* hidden, int64_t rows,
                     float* logits) {
  PoolCall call(pool);
  if (rows > 0) model->logits(*call, hidden, rows, logits);
}
