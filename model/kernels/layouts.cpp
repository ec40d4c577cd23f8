// How this library lays out the structs of kvserve.h, for a caller that describes them anew.
#include <cstddef>

#include "kvserve.h"

namespace {

#define AT(type, field) static_cast<int64_t>(offsetof(type, field))

// Each struct in the order of kvserve.h: its size, then the offset of each field.
const int64_t kLayouts[] = {
    sizeof(kv_matrix), AT(kv_matrix, format), AT(kv_matrix, reserved), AT(kv_matrix, in_features),
    AT(kv_matrix, out_features), AT(kv_matrix, data), AT(kv_matrix, bias),

    sizeof(kv_cache_layer), AT(kv_cache_layer, keys), AT(kv_cache_layer, values),
    AT(kv_cache_layer, format), AT(kv_cache_layer, block_size), AT(kv_cache_layer, kv_heads),
    AT(kv_cache_layer, head_size),

    sizeof(kv_batch), AT(kv_batch, requests), AT(kv_batch, query_starts), AT(kv_batch, key_lengths),
    AT(kv_batch, block_table), AT(kv_batch, max_blocks),

    sizeof(kv_choice), AT(kv_choice, penalised_ids), AT(kv_choice, output_counts),
    AT(kv_choice, penalised_count), AT(kv_choice, repetition_penalty),
    AT(kv_choice, presence_penalty), AT(kv_choice, frequency_penalty), AT(kv_choice, temperature),
    AT(kv_choice, biased_ids), AT(kv_choice, biases), AT(kv_choice, biased_count),
    AT(kv_choice, banned_ids), AT(kv_choice, banned_count), AT(kv_choice, allowed),
    AT(kv_choice, top_p), AT(kv_choice, uniform), AT(kv_choice, top_k), AT(kv_choice, min_p),

    sizeof(kv_norm), AT(kv_norm, weight), AT(kv_norm, bias),

    sizeof(kv_mlp), AT(kv_mlp, gate), AT(kv_mlp, up), AT(kv_mlp, down),

    sizeof(kv_experts), AT(kv_experts, router), AT(kv_experts, shared_gate),
    AT(kv_experts, experts), AT(kv_experts, shared), AT(kv_experts, count),
    AT(kv_experts, per_token), AT(kv_experts, intermediate_size),
    AT(kv_experts, shared_intermediate_size), AT(kv_experts, renormalises),
    AT(kv_experts, reserved),

    sizeof(kv_layer), AT(kv_layer, q), AT(kv_layer, k), AT(kv_layer, v), AT(kv_layer, o),
    AT(kv_layer, mlp), AT(kv_layer, experts), AT(kv_layer, input), AT(kv_layer, before_mlp),
    AT(kv_layer, attention_out), AT(kv_layer, mlp_out), AT(kv_layer, q_norm),
    AT(kv_layer, k_norm), AT(kv_layer, sinks), AT(kv_layer, window), AT(kv_layer, rotary),

    sizeof(kv_rotary_spec), AT(kv_rotary_spec, frequencies), AT(kv_rotary_spec, count),
    AT(kv_rotary_spec, magnitude),

    sizeof(kv_model_spec), AT(kv_model_spec, hidden_size), AT(kv_model_spec, intermediate_size),
    AT(kv_model_spec, heads), AT(kv_model_spec, kv_heads), AT(kv_model_spec, head_size),
    AT(kv_model_spec, layer_count), AT(kv_model_spec, rotary_count), AT(kv_model_spec, layers),
    AT(kv_model_spec, rotaries), AT(kv_model_spec, embedding), AT(kv_model_spec, output),
    AT(kv_model_spec, position_embedding), AT(kv_model_spec, final),
    AT(kv_model_spec, norm_epsilon), AT(kv_model_spec, attention_scale),
    AT(kv_model_spec, embedding_scale), AT(kv_model_spec, residual_scale),
    AT(kv_model_spec, logit_scale), AT(kv_model_spec, attention_cap),
    AT(kv_model_spec, logit_cap), AT(kv_model_spec, is_layer_norm),
    AT(kv_model_spec, normalises_rows), AT(kv_model_spec, activation),
    AT(kv_model_spec, reserved),

    sizeof(kv_step), AT(kv_step, tokens), AT(kv_step, input_ids), AT(kv_step, positions),
    AT(kv_step, slots), AT(kv_step, batch), AT(kv_step, first_layer), AT(kv_step, layer_bytes),
    AT(kv_step, blocks),
};

#undef AT

}  // namespace

int64_t kv_struct_layouts(const int64_t** layouts) {
  *layouts = kLayouts;
  return sizeof(kLayouts) / sizeof(kLayouts[0]);
}
