// A first look at kernels that Python cannot load here: linear layers in every format against
// plain loops over the weights as stored, and against themselves to the bit: each row alone, any
// number of them together, one thread and two.  Linked with the sources; exits with 1 at a fault.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kvserve.h"

namespace {

constexpr int64_t kOut = 80, kIn = 1184, kRows = 13;  // long enough to be summed in parts

struct Case {
  int32_t format;
  const char* name;
  double tolerance;  // of the mean error, as a part of the mean value: of rounded activations
};
constexpr Case kCases[] = {
    {KV_F32, "float32", 1e-6}, {KV_BF16, "bfloat16", 1e-6},       {KV_INT8, "int8", 1e-2},
    {KV_INT4, "int4", 1e-2},   {KV_INT4_AFFINE, "int4_affine", 1e-2},
};

std::vector<float> random_floats(int64_t count, uint32_t state) {
  std::vector<float> values(count);
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(state >> 8) / (1 << 23) - 1.0f;
  }
  return values;
}

// A packed matrix and the threads that multiply by it.
class Layer {
 public:
  Layer(const Case& format, const std::vector<float>& weights, int threads)
      : pool_(kv_pool_create(threads)) {
    const int64_t bytes = kv_packed_bytes(format.format, kOut, kIn);
    packed_ = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    kv_pack_float(pool_, format.format, KV_F32, weights.data(), kOut, kIn, packed_);
    matrix_ = {format.format, 0, kIn, kOut, packed_, nullptr};
  }
  ~Layer() {
    std::free(packed_);
    kv_pool_destroy(pool_);
  }
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  std::vector<float> stored() const {
    std::vector<int64_t> all(kOut);
    for (int64_t row = 0; row < kOut; ++row) all[row] = row;
    std::vector<float> weights(kOut * kIn);
    kv_gather_rows(pool_, &matrix_, all.data(), kOut, 1.0f, weights.data());
    return weights;
  }
  // `at_once` rows in each call.
  std::vector<float> multiply(const std::vector<float>& x, int64_t at_once) const {
    std::vector<float> out(kRows * kOut);
    for (int64_t row = 0; row < kRows; row += at_once)
      kv_linear(pool_, &matrix_, x.data() + row * kIn, std::min(at_once, kRows - row),
                out.data() + row * kOut, kOut, 0);
    return out;
  }

 private:
  kv_pool* pool_;
  void* packed_;
  kv_matrix matrix_;
};

bool is_same(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

double error_of(const std::vector<float>& out, const std::vector<float>& weights,
                const std::vector<float>& x) {
  double error = 0, size = 0;
  for (int64_t row = 0; row < kRows; ++row)
    for (int64_t o = 0; o < kOut; ++o) {
      double exact = 0;
      for (int64_t i = 0; i < kIn; ++i) exact += double(x[row * kIn + i]) * weights[o * kIn + i];
      error += std::fabs(exact - out[row * kOut + o]);
      size += std::fabs(exact);
    }
  return error / size;
}

}  // namespace

int main() {
  const std::vector<float> weights = random_floats(kOut * kIn, 1), x = random_floats(kRows * kIn, 2);
  bool failed = false;
  std::printf("%s, of %s\n", kv_instruction_set(), kv_instruction_sets());
  for (const Case& format : kCases) {
    const Layer one(format, weights, 1), two(format, weights, 2);
    const std::vector<float> alone = one.multiply(x, 1);
    const double error = error_of(alone, one.stored(), x);
    bool same = true;
    for (int64_t at_once = 1; at_once <= kRows; ++at_once)
      for (const Layer* layer : {&one, &two})
        same &= is_same(alone, layer->multiply(x, at_once));
    std::printf("%-12s error %.1e, %s in any company\n", format.name, error,
                same ? "the same" : "DIFFERENT");
    failed |= !same || !(error < format.tolerance);
  }
  return failed;
}
