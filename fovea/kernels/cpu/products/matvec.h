// Products of a few rows with a weight matrix, as decoding one token makes them: bounded by the
// time to read the weights, so each weight is read once, and nothing else of that size is read or
// written.
//
// Parallel over outputs by OpenMP; every output is summed by one thread in a fixed order, so
// results have the same bits for any number of threads and any number of rows. The instruction set
// is chosen_isa().
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
  int64_t rows = 0;      ///< at least 1; at most kMatVecRows for a MatVecFunction
  int64_t inputs = 0, outputs = 0;
  /// int16, int8: with packed weights, x is rounded to blocks d q first (int16_block.h,
  /// int8_block.h); a block of both adds d_x d_w sum_i q_x q_w, the inner sum in whole numbers.
  Activations activations = Activations::exact;
  /// int16, int8: x, rows, inputs and the format are those of the calling thread's last product, so
  /// that x need not be rounded again.
  bool same_x = false;
};

/// Rows that read a weight together, and above which a matrix product is faster.
inline constexpr int64_t kMatVecRows = 16;

/// All products side by side, as one parallel region.
void run(std::span<const MatVec> products);

/// Slice n of `slices` of the same, by the calling thread alone.
void run_slice(std::span<const MatVec> products, int64_t n, int64_t slices);

/// Outputs [begin, end) of one product, by the calling thread alone.
void run_range(const MatVec& product, int64_t begin, int64_t end);

/// The function of one instruction set: outputs [begin, end), one thread.
using MatVecFunction = void(const MatVec&, int64_t begin, int64_t end);
/// That of chosen_isa().
MatVecFunction* mat_vec_function();
MatVecFunction mat_vec_scalar, mat_vec_avx2, mat_vec_avx512, mat_vec_avx512_bf16;

/// y = d q of the blocks of x [n], what products with Activations::int8 read; by the calling
/// thread. n is a multiple of kBlock.
void round_to_int8(const float* x, int64_t n, float* y);
using RoundFunction = void(const float* x, int64_t n, float* y);
RoundFunction round_to_int8_scalar, round_to_int8_avx2, round_to_int8_avx512,
    round_to_int8_avx512_bf16;

/// Memory of the calling thread for at least `floats` numbers, aligned to cache lines, until its
/// next call.
float* mat_vec_scratch(int64_t floats);

}  // namespace fovea::kernels
