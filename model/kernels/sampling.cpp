// Choosing and scoring tokens: what becomes of a row of logits.
//
// Responsible for: penalties, biases and bans, temperature, top_k, top_p, min_p and the draw, and
// the log-probabilities of tokens.  It draws no random numbers: each row brings its own.
//
// Nothing is sorted.  A row is passed over once for its maximum and once for the numerators of its
// softmax, both with the maxima of small groups.  A cut looks at candidates only: those groups give
// a bound that no token to be kept lies below.  Where it falls among the candidates is found by
// bisection over the bits of a float, each time counting or adding up what is above.
//
// A row is one piece of work, so its result cannot depend on other rows or on the threads.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "pool_handle.h"
#include "simd.h"
#include "vmath.h"

namespace kvserve {
namespace {

// Entries that are added up in float before they go into a double; part of the order of sums.
constexpr int64_t kBlock = 256;

int64_t blocks_of(int64_t entries) { return (entries + kBlock - 1) / kBlock; }

// One thread's memory.
struct Scratch {
  float* row;         // the logits after their edits
  float* numerators;  // of the softmax, zeros behind the last
  float* group_maxima;  // W per block: entries of one block in the same lane are a group
  double* sums;         // of each block
  float* values;        // candidates for a cut, in order of id, zeros behind the last
  int32_t* ids;
  std::pair<float, int32_t>* best;

  Scratch(void* memory, int64_t width) {
    const int64_t padded = (blocks_of(width) + 1) * kBlock;
    char* at = static_cast<char*>(memory);
    const auto take = [&](auto*& array, int64_t count) {
      array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(at);
      at += count * static_cast<int64_t>(sizeof *array);
    };
    take(sums, blocks_of(padded));
    take(row, padded);
    take(numerators, padded);
    take(group_maxima, blocks_of(padded) * W);
    take(values, padded);
    take(ids, padded);
    take(best, padded);
    bytes = at - static_cast<char*>(memory);
  }
  int64_t bytes;
};

F load_padded(const float* p, int64_t n, float fill) {
  if (n >= W) return load(p);
  float lanes[W];
  for (int64_t i = 0; i < W; ++i) lanes[i] = i < n ? p[i] : fill;
  return load(lanes);
}

// The largest entry of x, NaN if there is one; fills group_maxima.
float row_maximum(const float* x, int64_t width, float* group_maxima) {
  F largest = set1(kMinusInfinity);
  I nans = {};
  for (int64_t block = 0; block < blocks_of(width); ++block) {
    F in_block = set1(kMinusInfinity);
    const int64_t stop = std::min(width, (block + 1) * kBlock);
    for (int64_t i = block * kBlock; i < stop; i += W) {
      const F v = load_padded(x + i, stop - i, kMinusInfinity);
      nans = nans | (I)(v != v);
      in_block = max(v, in_block);
    }
    store(group_maxima + block * W, in_block);
    largest = max(in_block, largest);
  }
  return reduce_add(nans) == 0 ? reduce_max(largest) : __builtin_nanf("");
}

// The lowest id of an entry that equals `peak`, the maximum of x.
int64_t first_of(const float* x, float peak, const float* group_maxima) {
  int64_t block = 0;
  while (reduce_max(load(group_maxima + block * W)) < peak) ++block;
  return std::find(x + block * kBlock, x + (block + 1) * kBlock, peak) - x;
}

// ---- edits ----

// A copy of x with penalties as in CTRL (Keskar et al. 2019) and the OpenAI API, biases and bans.
void edit(const float* x, int64_t width, const kv_choice& choice, float* out) {
  std::memcpy(out, x, sizeof(float) * width);
  for (int64_t i = 0; i < choice.penalised_count; ++i) {
    float& logit = out[choice.penalised_ids[i]];
    const float count = choice.output_counts[i];
    logit = logit < 0 ? logit * choice.repetition_penalty : logit / choice.repetition_penalty;
    logit = logit - (count > 0 ? choice.presence_penalty : 0.0f) - choice.frequency_penalty * count;
  }
  for (int64_t i = 0; i < choice.biased_count; ++i)
    out[choice.biased_ids[i]] += choice.biases[i];
  for (int64_t i = 0; i < choice.banned_count; ++i) out[choice.banned_ids[i]] = kMinusInfinity;
  if (!choice.allowed) return;
  for (int64_t first = 0; first < width; first += 32) {
    const uint32_t bits = choice.allowed[first / 32];
    if (bits == UINT32_MAX) continue;
    const int64_t stop = std::min<int64_t>(32, width - first);
    for (int64_t i = 0; i < stop; ++i)
      out[first + i] = bits >> i & 1 ? out[first + i] : kMinusInfinity;
  }
}

bool has_edits(const kv_choice& choice) {
  return choice.penalised_count || choice.biased_count || choice.banned_count || choice.allowed;
}

// ---- thresholds ----

// Floats in the order of these integers: all but the sign of the negative ones is flipped.
int32_t key_of(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

float of_key(int32_t key) {
  const int32_t bits = key ^ ((key >> 31) & 0x7fffffff);
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

// How many of x (n, a multiple of W) are at least `threshold`.
int64_t count_from(const float* x, int64_t n, float threshold) {
  I count = {};
  for (int64_t i = 0; i < n; i += W) count = count - (I)(load(x + i) >= set1(threshold));
  return reduce_add(count);
}

// Sum of those of x (n, a multiple of kBlock) that are at least `threshold`.
double sum_from(const float* x, int64_t n, float threshold) {
  double sum = 0;
  for (int64_t block = 0; block < n; block += kBlock) {
    F in_block = {};
    for (int64_t i = block; i < block + kBlock; i += W) {
      const F v = load(x + i);
      in_block = in_block + (v >= set1(threshold) ? v : F{});
    }
    sum += reduce_add(in_block);
  }
  return sum;
}

// A threshold with at least k of x (n, a multiple of W) above or equal, and with no more but for
// those that equal the k-th; `low` if there are fewer.
float threshold_of_count(const float* x, int64_t n, int64_t k, float low) {
  int64_t least = key_of(low), beyond = int64_t(key_of(-kMinusInfinity)) + 1;
  while (beyond - least > 1) {
    const int64_t middle = least + (beyond - least) / 2;
    const int64_t count = count_from(x, n, of_key(static_cast<int32_t>(middle)));
    (count >= k ? least : beyond) = middle;
    if (count == k) break;
  }
  return of_key(static_cast<int32_t>(least));
}

// Keeps those of x (n, a multiple of W) in [from, before), in `kept` with zeros up to a multiple of
// kBlock; returns that length.  `kept` may be x.
int64_t keep_between(const float* x, int64_t n, float from, float before, float* kept) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; i += W) {
    const F v = load(x + i);
    count += store_where(kept + count, v, (I)(v >= set1(from)) & (I)(v < set1(before)));
  }
  const int64_t padded = blocks_of(count) * kBlock;
  std::fill(kept + count, kept + padded, 0.0f);
  return padded;
}

// The largest threshold with a sum of `target` above or equal; `low` if all of x has less.  All of
// x (n, a multiple of kBlock) is at most 1; `spare` is as long, for what is still in question.
float threshold_of_sum(const float* x, int64_t n, double target, float low, float* spare) {
  int64_t least = key_of(low), beyond = int64_t(key_of(1.0f)) + 1;
  double above = 0;  // the sum from `beyond` on
  for (int step = 1; beyond - least > 1 && n > 0; ++step) {
    const int64_t middle = least + (beyond - least) / 2;
    const double sum = above + sum_from(x, n, of_key(static_cast<int32_t>(middle)));
    (sum >= target ? least : beyond) = middle;
    if (step % 4 == 0) {
      const float from = of_key(static_cast<int32_t>(least));
      const float before = of_key(static_cast<int32_t>(beyond));
      above += sum_from(x, n, before);
      n = keep_between(x, n, from, before, spare);
      x = spare;
    }
  }
  return of_key(static_cast<int32_t>(least));
}

// Calls found(first id, entries, where) for every vector of entries with one from `threshold` on,
// in order.
template <class Found>
void each_from(const float* x, int64_t width, const float* group_maxima, float threshold,
               Found&& found) {
  for (int64_t block = 0; block < blocks_of(width); ++block) {
    if (reduce_max(load(group_maxima + block * W)) < threshold) continue;
    const int64_t stop = std::min(width, (block + 1) * kBlock);
    for (int64_t i = block * kBlock; i < stop; i += W) {
      const F v = load_padded(x + i, stop - i, -__builtin_nanf(""));
      const I where = (I)(v >= set1(threshold));
      if (reduce_max(-where) > 0) found(i, v, where);
    }
  }
}

I consecutive_from(int64_t first) {
  I ids;
  for (int i = 0; i < W; ++i) ids[i] = static_cast<int32_t>(first) + i;
  return ids;
}

// ---- the draw ----

// The numerators e^((x - peak) / temperature), their groups' maxima and their blocks' sums.
void exponentiate(const float* x, int64_t width, float peak, float temperature, Scratch& to) {
  const F inverse = set1(1.0f / temperature), top = set1(peak);
  for (int64_t block = 0; block < blocks_of(width); ++block) {
    F largest = {}, sum = {};
    for (int64_t i = block * kBlock; i < (block + 1) * kBlock; i += W) {
      // Less the maximum first: the quotient of a tiny temperature overflows downwards only.
      const F v = width - i > 0 ? load_padded(x + i, width - i, kMinusInfinity)
                                : set1(kMinusInfinity);
      const F numerator = exp((v - top) * inverse);
      store(to.numerators + i, numerator);
      largest = max(numerator, largest);
      sum = sum + numerator;
    }
    store(to.group_maxima + block * W, largest);
    to.sums[block] = reduce_add(sum);
  }
}

double total_of(const double* sums, int64_t blocks) {
  double total = 0;
  for (int64_t block = 0; block < blocks; ++block) total += sums[block];
  return total;
}

// Where the sums of p, in order, pass the share `uniform` of their total; never where p is 0.
int64_t inverse_cdf(const float* p, const double* sums, int64_t blocks, double uniform) {
  const double target = uniform * total_of(sums, blocks);
  int64_t chosen = 0;
  double before = 0, at_chosen = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    if (sums[block] > 0) chosen = block, at_chosen = before;
    before += sums[block];
    if (before > target) break;
  }
  // Rounding may put a target at the very end of the block: its last entry is taken then.
  int64_t entry = chosen * kBlock;
  double sum = at_chosen;
  for (int64_t i = chosen * kBlock; i < (chosen + 1) * kBlock && sum <= target; ++i) {
    if (p[i] > 0) entry = i;
    sum += p[i];
  }
  return entry;
}

// Those tokens of a row that its cuts may keep.
class Candidates {
 public:
  Candidates(Scratch& scratch, int64_t width, float threshold) : scratch_(scratch) {
    lowest_ = std::max(threshold, __FLT_MIN__);  // no numerator lies between that and 0
    each_from(scratch.numerators, width, scratch.group_maxima, lowest_,
              [&](int64_t id, F values, I where) { keep(consecutive_from(id), values, where); });
    pad();
  }

  void cut_to_count(int64_t k) {
    if (k < size_) cut_from(threshold_of_count(scratch_.values, padded(), k, lowest_));
  }
  void cut_to_share(double share, double total) {
    // The logits are not needed any more.
    cut_from(threshold_of_sum(scratch_.values, padded(), share * total, lowest_, scratch_.row));
  }
  void cut_from(float threshold) {
    const int64_t before = padded();
    size_ = 0;
    for (int64_t i = 0; i < before; i += W) {
      const F values = load(scratch_.values + i);
      keep(load_as<I>(scratch_.ids + i), values, (I)(values >= set1(threshold)));
    }
    pad();
  }
  double total() const { return sum_from(scratch_.values, padded(), 0.0f); }

  int64_t draw(double uniform) {
    for (int64_t block = 0; block < blocks_of(size_); ++block)
      scratch_.sums[block] = sum_from(scratch_.values + block * kBlock, kBlock, 0.0f);
    return scratch_.ids[inverse_cdf(scratch_.values, scratch_.sums, blocks_of(size_), uniform)];
  }

 private:
  int64_t padded() const { return blocks_of(size_) * kBlock; }
  void keep(I ids, F values, I where) {
    store_where(scratch_.ids + size_, ids, where);
    size_ += store_where(scratch_.values + size_, values, where);
  }
  void pad() { std::fill(scratch_.values + size_, scratch_.values + padded(), 0.0f); }

  Scratch& scratch_;
  float lowest_;
  int64_t size_ = 0;
};

// Below which no numerator can be kept, whatever the cuts find.
float least_to_keep(const kv_choice& choice, int64_t width, double total, const Scratch& scratch) {
  if (choice.top_k > 0)  // as many groups have a maximum that large
    return threshold_of_count(scratch.group_maxima, blocks_of(width) * W, choice.top_k, 0.0f);
  if (choice.top_p < 1)  // the last of the nucleus and all below it have more than the other share
    return static_cast<float>((1 - choice.top_p) * total / static_cast<double>(width) * 0.999);
  return choice.min_p;
}

int64_t draw(const float* x, int64_t width, float peak, const kv_choice& choice, Scratch& scratch) {
  exponentiate(x, width, peak, choice.temperature, scratch);
  const int64_t blocks = blocks_of(width);
  if (choice.top_k <= 0 && choice.top_p >= 1 && choice.min_p <= 0)
    return inverse_cdf(scratch.numerators, scratch.sums, blocks, choice.uniform);
  const double total = total_of(scratch.sums, blocks);
  Candidates candidates(scratch, width, least_to_keep(choice, width, total, scratch));
  if (choice.top_k > 0) candidates.cut_to_count(choice.top_k);
  if (choice.top_p < 1)
    candidates.cut_to_share(choice.top_p, choice.top_k > 0 ? candidates.total() : total);
  if (choice.min_p > 0) candidates.cut_from(choice.min_p);  // the largest numerator is 1
  return candidates.draw(choice.uniform);
}

int32_t choose(const float* x, int64_t width, const kv_choice& choice, Scratch& scratch,
               int64_t* token) {
  float peak = row_maximum(x, width, scratch.group_maxima);
  if (!std::isfinite(peak)) return KV_NOT_FINITE;
  if (has_edits(choice)) {
    edit(x, width, choice, scratch.row);
    x = scratch.row;
    peak = row_maximum(x, width, scratch.group_maxima);
    if (!std::isfinite(peak)) return KV_NOTHING_ALLOWED;
  }
  *token = choice.temperature > 0 ? draw(x, width, peak, choice, scratch)
                                  : first_of(x, peak, scratch.group_maxima);
  return KV_CHOSEN;
}

// ---- scores ----

// log(sum of e^x).
double log_sum(const float* x, int64_t width, float peak) {
  double sum = 0;
  for (int64_t block = 0; block < blocks_of(width); ++block) {
    F in_block = {};
    const int64_t stop = std::min(width, (block + 1) * kBlock);
    for (int64_t i = block * kBlock; i < stop; i += W)
      in_block = in_block + exp(load_padded(x + i, stop - i, kMinusInfinity) - set1(peak));
    sum += reduce_add(in_block);
  }
  return peak + std::log(sum);
}

// The `count` largest entries of x, ties by lower id.
void find_largest(const float* x, int64_t width, int64_t count, Scratch& scratch, int64_t* ids) {
  const float threshold = threshold_of_count(scratch.group_maxima, blocks_of(width) * W, count,
                                             kMinusInfinity);
  int64_t found = 0;
  each_from(x, width, scratch.group_maxima, threshold, [&](int64_t first, F values, I where) {
    for (int i = 0; i < W; ++i)
      if (where[i]) scratch.best[found++] = {float{values[i]}, static_cast<int32_t>(first) + i};
  });
  const auto is_before = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  };
  std::partial_sort(scratch.best, scratch.best + count, scratch.best + found, is_before);
  for (int64_t i = 0; i < count; ++i) ids[i] = scratch.best[i].second;
}

// Finds the likeliest tokens, behind the first one, and scores all 1 + alternatives.
void score(const float* x, int64_t width, int64_t alternatives, Scratch& scratch, int64_t* tokens,
           float* logprobs) {
  const float peak = row_maximum(x, width, scratch.group_maxima);
  if (!std::isfinite(peak)) {
    std::fill(logprobs, logprobs + 1 + alternatives, __builtin_nanf(""));
    return;
  }
  if (alternatives > 0) find_largest(x, width, alternatives, scratch, tokens + 1);
  const double log_of_sum = log_sum(x, width, peak);
  for (int64_t i = 0; i <= alternatives; ++i)
    logprobs[i] = static_cast<float>(x[tokens[i]] - log_of_sum);
}

}  // namespace
}  // namespace kvserve

using namespace kvserve;

int64_t kv_sampling_scratch(int64_t width) {
  return (Scratch(nullptr, width).bytes + 63) / 64 * 64;
}

int64_t kv_choose(kv_pool* pool, const float* logits, int64_t rows, int64_t width,
                  const kv_choice* choices, void* scratch, int64_t* tokens, int32_t* outcomes) {
  PoolCall call(pool);
  const int64_t bytes = kv_sampling_scratch(width);
  call->run(rows, [&](int64_t r, int thread) {
    Scratch own(static_cast<char*>(scratch) + thread * bytes, width);
    outcomes[r] = choose(logits + r * width, width, choices[r], own, tokens + r);
  });
  return rows - std::count(outcomes, outcomes + rows, KV_CHOSEN);
}

void kv_score(kv_pool* pool, const float* logits, const int64_t* rows, int64_t count,
              int64_t width, int64_t alternatives, void* scratch, int64_t* tokens,
              float* logprobs) {
  PoolCall call(pool);
  const int64_t bytes = kv_sampling_scratch(width), stride = 1 + alternatives;
  call->run(count, [&](int64_t r, int thread) {
    Scratch own(static_cast<char*>(scratch) + thread * bytes, width);
    score(logits + rows[r] * width, width, alternatives, own, tokens + r * stride,
          logprobs + r * stride);
  });
}
