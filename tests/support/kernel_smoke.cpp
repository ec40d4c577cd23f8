// A first look at kernels that Python cannot load here: linear layers in every format against
// plain loops, with one and with two threads.  Linked with the sources; exits with 1 at a fault.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kvserve.h"

namespace {

constexpr int64_t kOut = 80, kIn = 128, kRows = 7;

struct Case {
  int32_t format;
  const char* name;
  double tolerance;  // of the mean error, as a part of the mean value
};
constexpr Case kCases[] = {
    {KV_F32, "float32", 1e-5},  {KV_BF16, "bfloat16", 1e-2},       {KV_INT8, "int8", 2e-2},
    {KV_INT4, "int4", 0.2},     {KV_INT4_AFFINE, "int4_affine", 0.2},
};

std::vector<float> random_floats(int64_t count, uint32_t state) {
  std::vector<float> values(count);
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(state >> 8) / (1 << 23) - 1.0f;
  }
  return values;
}

std::vector<float> multiply(const Case& format, const std::vector<float>& weights,
                            const std::vector<float>& x, int threads) {
  kv_pool* pool = kv_pool_create(threads);
  const int64_t bytes = kv_packed_bytes(format.format, kOut, kIn);
  void* packed = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  kv_pack_float(pool, format.format, KV_F32, weights.data(), kOut, kIn, packed);
  const kv_matrix matrix = {format.format, 0, kIn, kOut, packed, nullptr};
  std::vector<float> out(kRows * kOut);
  kv_linear(pool, &matrix, x.data(), kRows, out.data(), kOut, 0);
  std::free(packed);
  kv_pool_destroy(pool);
  return out;
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
  for (const Case& format : kCases) {
    const std::vector<float> one = multiply(format, weights, x, 1);
    const std::vector<float> two = multiply(format, weights, x, 2);
    const double error = error_of(one, weights, x);
    const bool equal = std::memcmp(one.data(), two.data(), one.size() * sizeof(float)) == 0;
    std::printf("%-12s error %.1e, %s with two threads\n", format.name, error,
                equal ? "the same" : "DIFFERENT");
    failed |= !equal || !(error < format.tolerance);
  }
  return failed;
}
