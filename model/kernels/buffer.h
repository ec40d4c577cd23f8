// Buffer: memory for intermediate results.
#pragma once

#include <cstdint>
#include <memory>

namespace kvserve {

// Memory that only grows and is not cleared: fresh pages cost more than the arithmetic.  It starts
// at a cache line, so that no vector of a row whose width is a multiple of 16 lies across two.
class Buffer {
 public:
  float* reserve(int64_t floats) {
    if (floats > size_) {
      memory_.reset(new float[floats + kLine]);
      size_ = floats;
    }
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory_.get());
    return memory_.get() + (-address % 64) / sizeof(float);
  }

 private:
  static constexpr int64_t kLine = 16;
  std::unique_ptr<float[]> memory_;
  int64_t size_ = 0;
};

}  // namespace kvserve
