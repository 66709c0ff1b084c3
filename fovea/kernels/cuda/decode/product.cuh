// Products of a step's rows with a weight matrix on the tensor cores, weights read once.
//
// A block computes 16 outputs of 8 * kTiles rows; its warps share the inputs among them, 32 at a
// time. Weights are the mma's A (16 outputs), rows its B. Lanes g = lane / 4, t = lane % 4 read 16
// bytes of output g, of g + 8 and of row g from input 8 t on: the sum over inputs may take them in
// any order, so these 8 numbers are columns 2t, 2t + 1, 2t + 8, 2t + 9 of two mma.
//
// The first weights are on their way before the kernel waits for the one before it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cuda/decode/stream.cuh"

namespace fovea::kernels::cuda {

constexpr int kProductOutputs = 16, kProductStep = 32;
FOVEA_DEVICE float activated_number(Activation a, float x) {
  switch (a) {
    case Activation::relu:
      return max_of(x, 0.0f);
    case Activation::relu_squared:
      return x > 0.0f ? x * x : 0.0f;
    case Activation::gelu:
      return 0.5f * x * (1.0f + exact_erf(x * 0.70710678f));
    case Activation::gelu_tanh:
      return x / (1.0f + exp_fast(-1.59576912f * (x + 0.044715f * x * x * x)));
    case Activation::silu:
      return x / (1.0f + exp_fast(-x));
    case Activation::elu:
      return x > 0.0f ? x : exp_fast(x) - 1.0f;
    case Activation::sigmoid:
      return 1.0f / (1.0f + exp_fast(-x));
  }
  return x;
}

/// The 16 outputs of a block: of one of the matrices, from `first` on; `at` is the column of y.
struct OutputTile {
  const ProductMatrix* matrix;
  int first, at;
};
FOVEA_DEVICE OutputTile output_tile(const ProductParameters& p, int tile) {
  OutputTile t{&p.matrices[0], tile * kProductOutputs, tile * kProductOutputs};
  for (int n = 0; n < 2 && t.first >= t.matrix->outputs; ++n) {
    const int tiles = (t.matrix->outputs + kProductOutputs - 1) / kProductOutputs;
    t.first -= tiles * kProductOutputs;
    t.at -= tiles * kProductOutputs - t.matrix->outputs;
    ++t.matrix;
  }
  return t;
}

/// Weights of one step of a warp: 8 inputs of outputs g and g + 8.
struct WeightPiece {
  uint4 low, high;
};
FOVEA_DEVICE WeightPiece load_weights(const ProductMatrix& m, int inputs, int first, int input) {
  const int g = threadIdx.x % 32 / 4;
  const bool in = input < inputs;
  const auto row = [&](int output) {
    const uint4 zero{};
    if (!in || output >= m.outputs) return zero;
    return load_read_only(
        reinterpret_cast<const uint4*>(m.w + static_cast<int64_t>(output) * inputs + input));
  };
  return {row(first + g), row(first + g + 8)};
}

FOVEA_DEVICE void multiply_piece(float (&sums)[4], const WeightPiece& w, const uint4& x) {
  const uint32_t a0[4] = {w.low.x, w.high.x, w.low.y, w.high.y};
  const uint32_t a1[4] = {w.low.z, w.high.z, w.low.w, w.high.w};
  mma(sums, a0, x.x, x.y);
  mma(sums, a1, x.z, x.w);
}

template <int kTiles, bool kGated, bool kFused>
struct ProductShape {
  static constexpr int kRows = 8 * kTiles, kMatrices = kGated ? 2 : 1;
  /// Steps of a warp whose weights are in flight together.
  static constexpr int kAhead = kTiles == 1 ? 8 / kMatrices : 4;
  static constexpr int kSums = kDecodeWarps * kMatrices * kProductOutputs * kRows * 4;
  /// A row of the stream, with a gap so that rows do not meet in one bank.
  static int64_t row_bytes(int64_t inputs) { return 2 * inputs + 16; }
  static int64_t shared(int64_t inputs) {
    return 64 + kSums + (kFused ? kRows * row_bytes(inputs) : 0);
  }
};

template <int kTiles, bool kGated, bool kFused>
FOVEA_KERNEL(kDecodeThreads, 1)
product_kernel(const __grid_constant__ ProductParameters p) {
  using Shape = ProductShape<kTiles, kGated, kFused>;
  constexpr int kAhead = Shape::kAhead;
  start_dependents();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int first_row = blockIdx.y * Shape::kRows;
  const OutputTile tile =
      kGated ? OutputTile{&p.matrices[0], static_cast<int>(blockIdx.x) * kProductOutputs,
                          static_cast<int>(blockIdx.x) * kProductOutputs}
             : output_tile(p, blockIdx.x);
  const ProductMatrix* const matrices[2] = {tile.matrix, kGated ? &p.matrices[1] : tile.matrix};
  const auto input_of = [&](int n) { return (warp + n * kDecodeWarps) * kProductStep + 8 * t; };
  const int steps = (p.inputs + kProductStep - 1) / kProductStep;
  WeightPiece pieces[Shape::kMatrices][kAhead];
#pragma unroll
  for (int m = 0; m < Shape::kMatrices; ++m)
#pragma unroll
    for (int n = 0; n < kAhead; ++n)
      pieces[m][n] = load_weights(*matrices[m], p.inputs, tile.first, input_of(n));
  wait_for_previous();

  const uint32_t scratch = shared_base(), parts = scratch + 64, rows = parts + Shape::kSums;
  const int row_bytes = 2 * p.inputs + 16;
  const int left = p.rows - first_row, here = left < Shape::kRows ? left : Shape::kRows;
  if constexpr (kFused) {
    for (int r = 0; r < here; ++r)
      stream_row(p.stream, first_row + r, rows + r * row_bytes, scratch, blockIdx.x == 0);
    sync_block();
  }
  const auto load_x = [&](int c, int input) {
    const int r = 8 * c + g;
    if (r >= here || input >= p.inputs) return uint4{};
    if constexpr (kFused) return load_shared_16(rows + r * row_bytes + 2 * input);
    return *reinterpret_cast<const uint4*>(p.x + static_cast<int64_t>(first_row + r) * p.inputs +
                                           input);
  };

  float sums[Shape::kMatrices][kTiles][4] = {};
  for (int n = 0; n * kDecodeWarps < steps; n += kAhead) {
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (warp + (n + a) * kDecodeWarps >= steps) continue;
      const int input = input_of(n + a), next = input_of(n + a + kAhead);
#pragma unroll
      for (int c = 0; c < kTiles; ++c) {
        const uint4 x = load_x(c, input);
#pragma unroll
        for (int m = 0; m < Shape::kMatrices; ++m) multiply_piece(sums[m][c], pieces[m][a], x);
      }
#pragma unroll
      for (int m = 0; m < Shape::kMatrices; ++m)
        pieces[m][a] = load_weights(*matrices[m], p.inputs, tile.first, next);
    }
  }

  // d: outputs g, g + 8 by rows 2t, 2t + 1.
  const auto part_at = [&](int w, int m, int output, int r) {
    return parts + (((w * Shape::kMatrices + m) * kProductOutputs + output) * Shape::kRows + r) * 4;
  };
#pragma unroll
  for (int m = 0; m < Shape::kMatrices; ++m)
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        store_shared_float(part_at(warp, m, g + 8 * (e / 2), 8 * c + 2 * t + e % 2), sums[m][c][e]);
  sync_block();

  for (int n = threadIdx.x; n < kProductOutputs * Shape::kRows; n += kDecodeThreads) {
    const int output = n % kProductOutputs, r = n / kProductOutputs;
    if (r >= here || tile.first + output >= tile.matrix->outputs) continue;
    float x[2] = {};
#pragma unroll
    for (int m = 0; m < Shape::kMatrices; ++m) {
      for (int w = 0; w < kDecodeWarps; ++w) x[m] += load_shared_number(part_at(w, m, output, r));
      if (p.end == ProductEnd::logits) continue;
      x[m] = rounded(x[m]);
      if (const float* const bias = matrices[m]->bias; bias != nullptr)
        x[m] = rounded(x[m] + rounded(bias[tile.first + output]));
    }
    const int64_t row = first_row + r;
    if (p.end == ProductEnd::logits) {
      p.stream.step->logits[row * tile.matrix->outputs + tile.first + output] = x[0];
      continue;
    }
    if (p.end == ProductEnd::activation) x[0] = activated_number(p.activation, x[0]);
    if (p.end == ProductEnd::gate) {
      x[0] = activated_number(p.activation, x[0]);
      // SwiGLU is one operation, other gates are two.
      x[0] = (p.activation == Activation::silu ? x[0] : rounded(x[0])) * x[1];
    }
    p.y[row * p.y_stride + tile.at + output] = bits_of(x[0]);
  }
}

}  // namespace fovea::kernels::cuda
