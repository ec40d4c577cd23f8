// Mixtures of experts: each row through the few MLPs that its router scores highest.
//
// Responsible for: choosing experts, gathering the rows of each, and summing what they add.  Rows
// are gathered by expert, so that the weights of each chosen expert are read once a step.  What a
// row's experts add is summed in ascending order of the experts, then the shared one: the bits of a
// row depend on nothing else.
#pragma once

#include <cstdint>
#include <vector>

#include "buffer.h"
#include "kvserve.h"
#include "linear.h"
#include "linear_input.h"
#include "thread_pool.h"

namespace kvserve {

// Forms that the products over unsorted rows read.
Forms expert_forms(const kv_experts& experts);

// Runs one layer's experts; its memory is kept between layers and steps.
class ExpertsRun {
 public:
  // added (tokens, width) = what the experts add to `normed`, rows in the forms of expert_forms.
  void run(ThreadPool& pool, const kv_experts& experts, int32_t activation, LinearInput& normed,
           int64_t tokens, int64_t width, float* added);

 private:
  void score(ThreadPool& pool, const kv_experts& experts, const LinearInput& normed,
             int64_t tokens);
  void place(const kv_experts& experts, int64_t tokens);
  void gather(ThreadPool& pool, const kv_experts& experts, LinearInput& normed, int64_t width);
  void run_first(ThreadPool& pool, const kv_experts& experts);
  void activate(ThreadPool& pool, const kv_experts& experts, int32_t activation, int64_t tokens);
  void run_second(ThreadPool& pool, const kv_experts& experts, int64_t tokens, int64_t width);
  void sum_row(const kv_experts& experts, int64_t row, int64_t width, float* out) const;

  std::vector<int32_t> chosen_;     // (tokens, per_token) ascending
  std::vector<float> weights_;      // likewise
  std::vector<int64_t> positions_;  // likewise: where each lies among the gathered rows
  std::vector<int64_t> rows_;       // of each gathered row, where it comes from
  std::vector<int64_t> begins_;     // (count + 1) first gathered row of each expert
  std::vector<GroupedJob> jobs_;
  LinearInput gathered_, activated_, shared_activated_;
  Buffer score_memory_, share_memory_, hidden_memory_, shared_memory_, out_memory_,
      shared_out_memory_;
  float *scores_ = nullptr, *shares_ = nullptr, *hidden_ = nullptr, *shared_ = nullptr,
        *outs_ = nullptr, *shared_outs_ = nullptr;
};

}  // namespace kvserve
