// LinearInput: the rows that linear layers multiply, in every form that some layer reads.
//
// Responsible for: rounding each row once for all the matrices that read it.
#pragma once

#include <cstdint>

#include "buffer.h"
#include "matrix.h"

namespace kvserve {

// 32 neighbouring activations of a row rounded to int8, x = scale * (q - zero), and all a tile
// needs to know of them, behind one pointer a row: a tile has no registers left for more.
// The zero point halves the step of values that are all of one sign.
struct QuantisedGroup {
  int8_t values[kGroup];  // q in -127..127; zero beyond the end of the row
  int16_t minus_zero;     // both corrections of a dot product are whole numbers, so that one
  int16_t minus_sum;      // integer operation makes them: minus the zero, and minus the sum of q
  float scale;
  float scaled_sum;       // sum of x as rounded: for weights with minima
};

struct QuantisedRows {
  int64_t groups = 0;
  QuantisedGroup* data = nullptr;  // (rows, groups)

  static int64_t bytes(int64_t rows, int64_t width) {
    return rows * ceil_div(width, kGroup) * static_cast<int64_t>(sizeof(QuantisedGroup));
  }
  void bind(void* memory, int64_t width) {
    groups = ceil_div(width, kGroup);
    data = static_cast<QuantisedGroup*>(memory);
  }
  void quantise_row(int64_t row, const float* x, int64_t width);
};

// Rows rounded to bfloat16, for products of two such numbers.
struct Bfloat16Rows {
  int64_t stride = 0;        // whole groups of 32
  uint16_t* data = nullptr;  // (rows, stride); zero beyond the end of a row

  static int64_t bytes(int64_t rows, int64_t width) {
    return rows * ceil_div(width, kGroup) * kGroup * 2;
  }
  void bind(void* memory, int64_t width) {
    stride = ceil_div(width, kGroup) * kGroup;
    data = static_cast<uint16_t*>(memory);
  }
  void round_row(int64_t row, const float* x, int64_t width);
};

// Which rounded forms the products with some matrices read.
struct Forms {
  bool int8 = false, bfloat16 = false;

  template <class... Matrices>
  explicit Forms(const Matrices&... matrices)
      : int8((is_used(matrices, is_quantised(matrices.format)) || ...)),
        bfloat16((is_used(matrices, reads_bfloat16(matrices.format)) || ...)) {}

 private:
  static bool is_used(const kv_matrix& matrix, bool reads) { return matrix.data && reads; }
};

class LinearInput {
 public:
  // Room for rows that are written to row() and then finished, one by one.
  void prepare(int64_t rows, int64_t width, Forms forms) {
    width_ = width;
    forms_ = forms;
    floats_ = float_memory_.reserve(rows * width);
    if (forms.int8)
      quantised_.bind(int8_memory_.reserve(QuantisedRows::bytes(rows, width) / 4), width);
    if (forms.bfloat16)
      rounded_.bind(bfloat16_memory_.reserve(Bfloat16Rows::bytes(rows, width) / 4), width);
  }
  void finish_row(int64_t r) {
    if (forms_.int8) quantised_.quantise_row(r, row(r), width_);
    if (forms_.bfloat16) rounded_.round_row(r, row(r), width_);
  }
  float* row(int64_t r) { return floats_ + r * width_; }
  float* floats() { return floats_; }
  bool is_rounded() const { return forms_.int8 || forms_.bfloat16; }

  const float* floats() const { return floats_; }
  const QuantisedRows& quantised() const { return quantised_; }
  const Bfloat16Rows& rounded() const { return rounded_; }

 private:
  Buffer float_memory_, int8_memory_, bfloat16_memory_;
  QuantisedRows quantised_;
  Bfloat16Rows rounded_;
  float* floats_ = nullptr;
  int64_t width_ = 0;
  Forms forms_;
};

}  // namespace kvserve
