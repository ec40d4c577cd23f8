// The phases of experts.h.
#include "experts.h"

#include <algorithm>
#include <cmath>

#include "elementwise.h"
#include "rows.h"
#include "simd.h"

namespace kvserve {
namespace {

// The likeliest experts of one row in ascending order, and their weights.
void choose(const kv_experts& experts, const float* scores, int32_t* chosen, float* weights) {
  const int64_t count = experts.count, per_token = experts.per_token;
  for (int64_t k = 0; k < per_token; ++k) {
    int32_t best = -1;
    for (int32_t e = 0; e < count; ++e) {
      if (std::find(chosen, chosen + k, e) != chosen + k) continue;
      if (best < 0 || scores[e] > scores[best]) best = e;
    }
    chosen[k] = best;
  }
  const float largest = scores[chosen[0]];
  std::sort(chosen, chosen + per_token);
  float total = 0.0f;
  for (int64_t k = 0; k < per_token; ++k) {
    weights[k] = std::exp(scores[chosen[k]] - largest);
    total += weights[k];
  }
  if (!experts.renormalises) {
    total = 0.0f;
    for (int64_t e = 0; e < count; ++e) total += std::exp(scores[e] - largest);
  }
  for (int64_t k = 0; k < per_token; ++k) weights[k] /= total;
}

// out += weight * x
void add_weighted(const float* x, float weight, int64_t width, float* out) {
  for (int64_t i = 0; i < width; i += W) {
    const int64_t n = width - i;
    store_upto(out + i, fma(load_upto(x + i, n), set1(weight), load_upto(out + i, n)), n);
  }
}

void merge(Forms* forms, const Forms& others) {
  forms->int8 |= others.int8;
  forms->bfloat16 |= others.bfloat16;
}

}  // namespace

Forms expert_forms(const kv_experts& experts) {
  return Forms(experts.router, experts.shared_gate, experts.shared.gate, experts.shared.up);
}

void ExpertsRun::score(ThreadPool& pool, const kv_experts& experts, const LinearInput& normed,
                       int64_t tokens) {
  scores_ = score_memory_.reserve(tokens * experts.count);
  LinearJob jobs[4] = {{&experts.router, &normed, scores_, experts.count, false}};
  int count = 1;
  if (experts.shared.up.data) {
    const int64_t width = experts.shared_intermediate_size;
    shares_ = share_memory_.reserve(tokens);
    shared_ = shared_memory_.reserve(tokens * 2 * width);
    jobs[count++] = {&experts.shared_gate, &normed, shares_, 1, false};
    jobs[count++] = {&experts.shared.gate, &normed, shared_, 2 * width, false};
    jobs[count++] = {&experts.shared.up, &normed, shared_ + width, 2 * width, false};
  }
  run_linear(pool, jobs, count, tokens);
  chosen_.resize(tokens * experts.per_token);
  weights_.resize(tokens * experts.per_token);
  run_rows(pool, tokens, experts.count * experts.per_token, [&](int64_t r) {
    choose(experts, scores_ + r * experts.count, &chosen_[r * experts.per_token],
           &weights_[r * experts.per_token]);
  });
}

void ExpertsRun::place(const kv_experts& experts, int64_t tokens) {
  const int64_t total = tokens * experts.per_token;
  begins_.assign(experts.count + 1, 0);
  for (int64_t i = 0; i < total; ++i) ++begins_[chosen_[i] + 1];
  for (int64_t e = 0; e < experts.count; ++e) begins_[e + 1] += begins_[e];
  positions_.resize(total);
  rows_.resize(total);
  std::vector<int64_t> next(begins_.begin(), begins_.end() - 1);
  for (int64_t i = 0; i < total; ++i) {
    positions_[i] = next[chosen_[i]]++;
    rows_[positions_[i]] = i / experts.per_token;
  }
}

void ExpertsRun::gather(ThreadPool& pool, const kv_experts& experts, LinearInput& normed,
                        int64_t width) {
  Forms forms;
  for (int64_t e = 0; e < experts.count; ++e)
    merge(&forms, Forms(experts.experts[e].gate, experts.experts[e].up));
  const int64_t total = static_cast<int64_t>(rows_.size());
  gathered_.prepare(total, width, forms);
  run_rows(pool, total, width, [&](int64_t i) {
    std::copy_n(normed.row(rows_[i]), width, gathered_.row(i));
    gathered_.finish_row(i);
  });
}

void ExpertsRun::run_first(ThreadPool& pool, const kv_experts& experts) {
  const int64_t width = experts.intermediate_size, total = static_cast<int64_t>(rows_.size());
  hidden_ = hidden_memory_.reserve(total * 2 * width);
  jobs_.clear();
  for (int64_t e = 0; e < experts.count; ++e) {
    const kv_mlp& mlp = experts.experts[e];
    if (begins_[e] == begins_[e + 1]) continue;
    jobs_.push_back({{&mlp.gate, &gathered_, hidden_, 2 * width, false}, begins_[e], begins_[e + 1]});
    jobs_.push_back(
        {{&mlp.up, &gathered_, hidden_ + width, 2 * width, false}, begins_[e], begins_[e + 1]});
  }
  run_grouped_linear(pool, jobs_.data(), static_cast<int64_t>(jobs_.size()));
}

void ExpertsRun::activate(ThreadPool& pool, const kv_experts& experts, int32_t activation,
                          int64_t tokens) {
  const int64_t width = experts.intermediate_size, total = static_cast<int64_t>(rows_.size());
  Forms forms;
  for (int64_t e = 0; e < experts.count; ++e) merge(&forms, Forms(experts.experts[e].down));
  activated_.prepare(total, width, forms);
  run_rows(pool, total, 2 * width, [&](int64_t i) {
    const float* hidden = hidden_ + i * 2 * width;
    activation_row(activation, hidden, hidden + width, width, activated_.row(i));
    activated_.finish_row(i);
  });
  if (!experts.shared.up.data) return;
  const int64_t shared_width = experts.shared_intermediate_size;
  shared_activated_.prepare(tokens, shared_width, Forms(experts.shared.down));
  run_rows(pool, tokens, 2 * shared_width, [&](int64_t r) {
    const float* hidden = shared_ + r * 2 * shared_width;
    activation_row(activation, hidden, hidden + shared_width, shared_width,
                   shared_activated_.row(r));
    shared_activated_.finish_row(r);
  });
}

void ExpertsRun::run_second(ThreadPool& pool, const kv_experts& experts, int64_t tokens,
                            int64_t width) {
  outs_ = out_memory_.reserve(static_cast<int64_t>(rows_.size()) * width);
  jobs_.clear();
  for (int64_t e = 0; e < experts.count; ++e)
    if (begins_[e] != begins_[e + 1])
      jobs_.push_back({{&experts.experts[e].down, &activated_, outs_, width, false}, begins_[e],
                       begins_[e + 1]});
  if (experts.shared.up.data) {
    shared_outs_ = shared_out_memory_.reserve(tokens * width);
    jobs_.push_back(
        {{&experts.shared.down, &shared_activated_, shared_outs_, width, false}, 0, tokens});
  }
  run_grouped_linear(pool, jobs_.data(), static_cast<int64_t>(jobs_.size()));
}

void ExpertsRun::sum_row(const kv_experts& experts, int64_t row, int64_t width,
                         float* out) const {
  std::fill_n(out, width, 0.0f);
  for (int64_t k = row * experts.per_token; k < (row + 1) * experts.per_token; ++k)
    add_weighted(outs_ + positions_[k] * width, weights_[k], width, out);
  if (experts.shared.up.data)
    add_weighted(shared_outs_ + row * width, 1.0f / (1.0f + std::exp(-shares_[row])), width, out);
}

void ExpertsRun::run(ThreadPool& pool, const kv_experts& experts, int32_t activation,
                     LinearInput& normed, int64_t tokens, int64_t width, float* added) {
  score(pool, experts, normed, tokens);
  place(experts, tokens);
  gather(pool, experts, normed, width);
  run_first(pool, experts);
  activate(pool, experts, activation, tokens);
  run_second(pool, experts, tokens, width);
  run_rows(pool, tokens, width * experts.per_token,
           [&](int64_t r) { sum_row(experts, r, width, added + r * width); });
}

}  // namespace kvserve
