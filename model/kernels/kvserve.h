// The C interface of the native kernels, read by model/native.py through ctypes.
//
// Responsible for: the structs and functions both sides agree on, and nothing else.  Change
// KV_ABI_VERSION with any of them.  The caller owns every buffer and keeps it alive; nothing here
// keeps a pointer after it returns, except a kv_model, which keeps those it was built from.
// Sizes and indices are checked by the caller: these functions trust what they get, except that
// kv_model_forward checks every index of a step.
#pragma once

#include <stdint.h>

#define KV_ABI_VERSION 10
#define KV_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kv_pool kv_pool;

// How a matrix's weights are packed (matrix.h has the layouts).
enum {
  KV_F32 = 0,
  KV_BF16 = 1,
  KV_INT8 = 2,         // scale * q,        q in -128..127, groups of 32 inputs, float16 scales
  KV_INT4 = 3,         // scale * (q - 8),  q in 0..15
  KV_INT4_AFFINE = 4,  // scale * q + min,  q in 0..15
};

// A linear layer's weights: y = x W^T + bias, W of shape (out_features, in_features).
typedef struct {
  int32_t format;
  int32_t reserved;
  int64_t in_features;
  int64_t out_features;
  const void* data;   // packed, 64-byte aligned
  const float* bias;  // out_features, or null
} kv_matrix;

// Keys and values of one layer inside the pool.  A block has as many elements as the pool's shape
// says, but the kernels divide it by head first, so that an item of attention reads without gaps:
// keys (blocks, kv_heads, head_size, block_size), values (blocks, kv_heads, block_size, head_size).
// In the int8 format the numbers of a block's head are followed by a bfloat16 scale per token.
enum kv_cache_format { KV_CACHE_FLOAT32 = 0, KV_CACHE_BFLOAT16 = 1, KV_CACHE_INT8 = 2 };

typedef struct {
  void* keys;          // of this layer
  void* values;
  int32_t format;      // a kv_cache_format
  int32_t block_size;  // a power of two, at least 16
  int32_t kv_heads;
  int32_t head_size;
} kv_cache_layer;

// Who sees what in one flat ragged batch.  Token i of request b, counted from query_starts[b], is
// at position key_lengths[b] - (number of its tokens) + i and sees the keys up to itself.
typedef struct {
  int64_t requests;
  const int64_t* query_starts;  // requests + 1
  const int64_t* key_lengths;   // requests
  const int64_t* block_table;   // requests x max_blocks
  int64_t max_blocks;
} kv_batch;

// KV_CLAMPED_SWIGLU: g sigmoid(1.702 g) (u + 1) of a gate g up to 7 and u within +-7.
enum { KV_SILU = 0, KV_GELU_TANH = 1, KV_GELU_ERF = 2, KV_CLAMPED_SWIGLU = 3 };

// ---- about the library ----
KV_EXPORT int32_t kv_abi_version(void);
KV_EXPORT const char* kv_instruction_set(void);  // what this library was compiled for
KV_EXPORT const char* kv_instruction_sets(void);  // those this processor runs, best,first
// Points at the layouts of the structs of this file, in its order: of each its size, then the offset
// of each field.  Returns how many numbers there are.
KV_EXPORT int64_t kv_struct_layouts(const int64_t** layouts);

// ---- threads ----
KV_EXPORT kv_pool* kv_pool_create(int32_t threads);
KV_EXPORT void kv_pool_destroy(kv_pool* pool);

// ---- weights ----
// Bytes of the packed form; 0 for an unknown format.
KV_EXPORT int64_t kv_packed_bytes(int32_t format, int64_t out_features, int64_t in_features);
// Packs float rows (source: KV_F32 or KV_BF16), rounding them to `format`.
KV_EXPORT int32_t kv_pack_float(kv_pool* pool, int32_t format, int32_t source_format,
                                const void* source, int64_t out_features, int64_t in_features,
                                void* packed);
// Packs GGUF blocks; the type's number as in the file.  Returns the packed format, -1 if there is
// no direct form.  With `packed` null, only answers.
KV_EXPORT int32_t kv_pack_gguf(kv_pool* pool, int32_t gguf_type, const void* source,
                               int64_t out_features, int64_t in_features, void* packed);
// out[i] = scale * W[rows[i]] as float32; an embedding, or the way back for tests.
KV_EXPORT void kv_gather_rows(kv_pool* pool, const kv_matrix* matrix, const int64_t* rows,
                              int64_t count, float scale, float* out);

// ---- operations; all float32, row-major ----
// What kv_model_forward is made of.  Only kv_linear serves elsewhere; the others are a seam where
// tests reach one operation alone.
// out (rows, out_stride) = x (rows, in) W^T + bias; added to what is there if `accumulate`.
KV_EXPORT void kv_linear(kv_pool* pool, const kv_matrix* matrix, const float* x, int64_t rows,
                         float* out, int64_t out_stride, int32_t accumulate);
KV_EXPORT void kv_rms_norm(kv_pool* pool, const float* x, const float* weight, int64_t rows,
                           int64_t width, float epsilon, float* out);
KV_EXPORT void kv_layer_norm(kv_pool* pool, const float* x, const float* weight, const float* bias,
                             int64_t rows, int64_t width, float epsilon, float* out);
// out = act(gate) * up; `up` may be null (out = act(gate)).
KV_EXPORT void kv_gated_activation(kv_pool* pool, int32_t activation, const float* gate,
                                   const float* up, int64_t rows, int64_t width, int64_t stride,
                                   float* out);
// Turns every head of x (rows, heads, head_size), row stride given, in place by its row's position;
// cosines and sines (positions, head_size / 2).
KV_EXPORT void kv_rotary(kv_pool* pool, float* x, int64_t rows, int64_t row_stride, int64_t heads,
                         int64_t head_size, const int64_t* positions, const float* cosines,
                         const float* sines);
// Writes k and v (rows, kv_heads, head_size), row stride given, into the slots
// (block * block_size + offset) of the cache.
KV_EXPORT void kv_cache_write(kv_pool* pool, const kv_cache_layer* cache, const float* k,
                              const float* v, int64_t rows, int64_t row_stride,
                              const int64_t* slots);
// out (rows, heads, head_size) = softmax(scale q k^T) v over the keys each token sees, or the last
// `window` of them if window > 0.  With cap > 0 a score s becomes cap tanh(s / cap); `sinks` (heads),
// or null, are scores that take part in the softmax and add no value.
KV_EXPORT void kv_attention(kv_pool* pool, const kv_cache_layer* cache, const kv_batch* batch,
                            const float* q, int64_t q_stride, int64_t heads, float scale,
                            float cap, const float* sinks, int64_t window, float* out,
                            int64_t out_stride);

// ---- choosing tokens ----

// How the next token of a row is chosen.  Its edits work on a copy, in the order they stand here.
typedef struct {
  // Of tokens that the request holds, each once, and how often it was generated.
  const int64_t* penalised_ids;
  const float* output_counts;
  int64_t penalised_count;
  float repetition_penalty, presence_penalty, frequency_penalty;
  float temperature;  // 0: the likeliest token, the lowest id among equals
  const int64_t* biased_ids;
  const float* biases;
  int64_t biased_count;
  const int64_t* banned_ids;
  int64_t banned_count;
  const uint32_t* allowed;  // bit i % 32 of word i / 32: token i may be chosen; null: all may
  double top_p;             // 1: off
  double uniform;           // what the draw goes by, in [0, 1)
  int32_t top_k;            // 0: off
  float min_p;              // 0: off
} kv_choice;

enum { KV_CHOSEN = 0, KV_NOT_FINITE = 1, KV_NOTHING_ALLOWED = 2 };

// Bytes of scratch memory that the two below need for each thread of the pool, 64-byte aligned.
KV_EXPORT int64_t kv_sampling_scratch(int64_t width);
// tokens[r] of row r of logits (rows, width), unless outcomes[r] says why there is none.  Returns
// how many rows have none.
KV_EXPORT int64_t kv_choose(kv_pool* pool, const float* logits, int64_t rows, int64_t width,
                            const kv_choice* choices, void* scratch, int64_t* tokens,
                            int32_t* outcomes);
// logprobs (count, 1 + alternatives), in the rows of logits named by `rows`, of the first token of
// each row of `tokens`, of that shape, and of the likeliest ones, at most `width`, which are filled
// in.  NaN where a row has a NaN, plus infinity or nothing above minus infinity.
KV_EXPORT void kv_score(kv_pool* pool, const float* logits, const int64_t* rows, int64_t count,
                        int64_t width, int64_t alternatives, void* scratch, int64_t* tokens,
                        float* logprobs);

// ---- a whole decoder ----

typedef struct {
  const float* weight;  // null: this norm is not there
  const float* bias;    // layer norm only
} kv_norm;

typedef struct {
  kv_matrix gate, up, down;  // gate.data null: no gate
} kv_mlp;

// A mixture of experts: each row passes those `per_token` that its router scores highest.
typedef struct {
  kv_matrix router, shared_gate;  // float32; (count, hidden) and, if there is `shared`, (1, hidden)
  const kv_mlp* experts;
  kv_mlp shared;                  // every row passes it, scaled by sigmoid(shared_gate); data null:
                                  // none
  int64_t count, per_token, intermediate_size, shared_intermediate_size;
  int32_t renormalises;           // the softmax is taken over the chosen ones alone
  int32_t reserved;
} kv_experts;

typedef struct {
  kv_matrix q, k, v, o;
  kv_mlp mlp;
  const kv_experts* experts;   // instead of the MLP; null: none
  kv_norm input, before_mlp;   // before attention and MLP; null in some families
  kv_norm attention_out, mlp_out;  // of what they add, in some families
  kv_norm q_norm, k_norm;      // of queries and keys, in some families
  const float* sinks;          // (heads), see kv_attention; null: none
  int64_t window;              // keys a query sees, itself included; 0: all
  int64_t rotary;              // index into kv_model_spec.rotaries; -1: none
} kv_layer;

typedef struct {
  const float* frequencies;  // angles per position
  int64_t count;             // of them: so many pairs (i, i + count) of each head are turned
  double magnitude;          // factor of cosines and sines
} kv_rotary_spec;

typedef struct {
  int64_t hidden_size, intermediate_size, heads, kv_heads, head_size;
  int64_t layer_count, rotary_count;
  const kv_layer* layers;
  const kv_rotary_spec* rotaries;
  kv_matrix embedding, output;
  kv_matrix position_embedding;  // data null: none
  kv_norm final;
  double norm_epsilon, attention_scale, embedding_scale, residual_scale, logit_scale;
  double attention_cap, logit_cap;  // 0: none
  int32_t is_layer_norm;
  int32_t normalises_rows;  // q_norm and k_norm are of whole rows, not of each head
  int32_t activation;
  int32_t reserved;
} kv_model_spec;

// One step's flat ragged batch, and the pool it writes to and reads from.
typedef struct {
  int64_t tokens;
  const int64_t* input_ids;
  const int64_t* positions;
  const int64_t* slots;
  kv_batch batch;
  kv_cache_layer first_layer;  // of the pool; the others follow at layer_bytes
  int64_t layer_bytes;
  int64_t blocks;  // in the pool
} kv_step;

typedef struct kv_model kv_model;

// Copies the spec; the weights it points to must outlive the model.
KV_EXPORT kv_model* kv_model_create(const kv_model_spec* spec);
KV_EXPORT void kv_model_destroy(kv_model* model);
// All layers, keys and values written; hidden (tokens, hidden_size) before the last norm.
// Returns 0, or, with nothing written, what is wrong: 1 an input id, 2 a position, 3 a slot,
// 4 a key length, 5 a block.
KV_EXPORT int32_t kv_model_forward(kv_model* model, kv_pool* pool, const kv_step* step,
                                   float* hidden);
// logits (rows, vocabulary) of hidden states (rows, hidden_size).
KV_EXPORT void kv_model_logits(kv_model* model, kv_pool* pool, const float* hidden, int64_t rows,
                               float* logits);

#ifdef __cplusplus
}
#endif
