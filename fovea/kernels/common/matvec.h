// Products of a few rows with a weight matrix, as in decoding one token. The time to read the
// weights bounds them. So each weight is read once, and nothing else of that size is read or
// written.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "fovea/kernels/common/weight_format.h"

namespace fovea::kernels {

/// y[r][o] = sum_i x[r][i] w[o][i], sums in float32. w [outputs, inputs] in any format. A product
/// of exact activations with packed weights has the bits of that with the same weights in float32.
struct MatVec {
  const float* x = nullptr;  ///< row r at x + r * x_stride
  int64_t x_stride = 0;      ///< >= inputs
  WeightRows w;
  float* y = nullptr;    ///< row r at y + r * y_stride
  int64_t y_stride = 0;  ///< >= outputs
  int64_t rows = 0;      ///< at least 1
  int64_t inputs = 0, outputs = 0;
  /// int16, int8: with packed weights, x is rounded to blocks d q first (int16_block.h,
  /// int8_block.h). A block of x and one of w then add d_x d_w sum_i q_x q_w, the inner sum in
  /// whole numbers.
  Activations activations = Activations::exact;
  /// int16, int8: x, rows, inputs and the format are those of the calling thread's last product, so
  /// that x need not be rounded again.
  bool same_x = false;
};

/// Rows that read a weight together, and above which a matrix product is faster.
inline constexpr int64_t kMatVecRows = 16;

/// All products side by side.
struct MatVecs {
  std::span<const MatVec> products;
};

/// y = d q of the blocks of each row of x [rows][inputs], what products with Activations::int8
/// read. `inputs` is a multiple of kBlock.
template <class T>
struct Int8Rounding {
  const T* x = nullptr;
  T* y = nullptr;
  int64_t rows = 0, inputs = 0;
};

/// y [outputs, inputs] = packed weights, bit for bit as unpack_row().
struct Unpacking {
  WeightRows w;
  float* y = nullptr;
  int64_t inputs = 0, outputs = 0;
};

}  // namespace fovea::kernels
