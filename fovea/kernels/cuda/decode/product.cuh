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

#include "fovea/kernels/cuda/decode/launches.h"
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
    return 64 + kSums + (kFused ? kMostFusedRows * row_bytes(inputs) : 0);
  }
};

/// The work of one block; every thread has one.
template <int kTiles, bool kGated, bool kFused>
class ProductBlock {
  using Shape = ProductShape<kTiles, kGated, kFused>;
  static constexpr int kAhead = Shape::kAhead, kMatrices = Shape::kMatrices, kRows = Shape::kRows;

 public:
  FOVEA_DEVICE explicit ProductBlock(const ProductParameters& p)
      : p_(p),
        first_row_(blockIdx.y * kRows),
        steps_((p.inputs + kProductStep - 1) / kProductStep),
        row_bytes_(2 * p.inputs + 16),
        tile_(kGated ? OutputTile{&p.matrices[0], static_cast<int>(blockIdx.x) * kProductOutputs,
                                  static_cast<int>(blockIdx.x) * kProductOutputs}
                     : output_tile(p, blockIdx.x)) {
    const int left = p.rows - first_row_;
    here_ = left < kRows ? left : kRows;
  }

  FOVEA_DEVICE void run() {
    if (static_cast<int>(blockIdx.x) >= p_.tiles) return find_features();
#pragma unroll
    for (int n = 0; n < kAhead; ++n) load(n, n);
    take_input();
    for (int n = 0; n * kDecodeWarps < steps_; n += kAhead) {
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        if (warp_ + (n + a) * kDecodeWarps >= steps_) continue;
        multiply(n + a, a);
        load(n + a + kAhead, a);
      }
    }
    leave_sums();
    sync_block();
    for (int n = threadIdx.x; n < kProductOutputs * kRows; n += kDecodeThreads)
      finish(n % kProductOutputs, n / kProductOutputs);
  }

 private:
  FOVEA_DEVICE void take_input() const {
    wait_for_previous();
    if constexpr (kFused) {
      for (int r = 0; r < here_; ++r)
        stream_row(p_.stream, first_row_ + r, rows_ + r * row_bytes_, scratch_, blockIdx.x == 0);
      sync_block();
    }
  }

  // A warp has a feature: W_g (y - mean) (TokenGroups).
  FOVEA_DEVICE void find_features() const {
    const TokenGroups& g = p_.groups;
    const int f = (static_cast<int>(blockIdx.x) - p_.tiles) * kDecodeWarps + warp_;
    const auto* const weight =
        reinterpret_cast<const float2*>(g.weight + f * static_cast<int64_t>(p_.inputs));
    const auto* const mean = reinterpret_cast<const float2*>(g.mean);
    take_input();
    if (f >= static_cast<int>(g.features)) return;
    for (int r = 0; r < here_; ++r) {
      float product = 0.0f;
#pragma unroll 8
      for (int n = threadIdx.x % 32; n < p_.inputs / 2; n += 32) {
        const float2 x = unpack(load_pair(r, n)), m = mean[n], w = weight[n];
        product += (x.x - m.x) * w.x + (x.y - m.y) * w.y;
      }
      product = warp_sum(product);
      if (threadIdx.x % 32 == 0) p_.features[(first_row_ + r) * g.features + f] = product;
    }
  }
  FOVEA_DEVICE uint32_t load_pair(int r, int n) const {
    if constexpr (kFused) return load_shared(rows_ + r * row_bytes_ + 4 * n);
    return reinterpret_cast<const uint32_t*>(p_.x +
                                             static_cast<int64_t>(first_row_ + r) * p_.inputs)[n];
  }
  FOVEA_DEVICE const ProductMatrix& matrix(int m) const {
    return kGated ? p_.matrices[m] : *tile_.matrix;
  }
  // The first input that this lane reads in step n of its warp.
  FOVEA_DEVICE int input_of(int n) const {
    return (warp_ + n * kDecodeWarps) * kProductStep + 8 * t_;
  }

  FOVEA_DEVICE void load(int step, int a) {
#pragma unroll
    for (int m = 0; m < kMatrices; ++m)
      pieces_[m][a] = load_weights(matrix(m), p_.inputs, tile_.first, input_of(step));
  }
  FOVEA_DEVICE uint4 load_x(int r, int input) const {
    if (r >= here_ || input >= p_.inputs) return uint4{};
    if constexpr (kFused) return load_shared_16(rows_ + r * row_bytes_ + 2 * input);
    return *reinterpret_cast<const uint4*>(p_.x + static_cast<int64_t>(first_row_ + r) * p_.inputs +
                                           input);
  }
  FOVEA_DEVICE void multiply(int step, int a) {
#pragma unroll
    for (int c = 0; c < kTiles; ++c) {
      const uint4 x = load_x(8 * c + g_, input_of(step));
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) multiply_piece(sums_[m][c], pieces_[m][a], x);
    }
  }

  FOVEA_DEVICE uint32_t part_at(int warp, int m, int output, int r) const {
    return parts_ + (((warp * kMatrices + m) * kProductOutputs + output) * kRows + r) * 4;
  }
  // d of an mma: outputs g, g + 8 by rows 2t, 2t + 1.
  FOVEA_DEVICE void leave_sums() const {
#pragma unroll
    for (int m = 0; m < kMatrices; ++m)
#pragma unroll
      for (int c = 0; c < kTiles; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          store_shared_float(part_at(warp_, m, g_ + 8 * (e / 2), 8 * c + 2 * t_ + e % 2),
                             sums_[m][c][e]);
  }

  // The warps' sums of one output and row.
  FOVEA_DEVICE float sum_of(int m, int output, int r) const {
    float sum = 0.0f;
    for (int w = 0; w < kDecodeWarps; ++w) sum += load_shared_number(part_at(w, m, output, r));
    return sum;
  }
  FOVEA_DEVICE float rounded_sum(int m, int output, int r) const {
    const float x = rounded(sum_of(m, output, r));
    const float* const bias = matrix(m).bias;
    return bias != nullptr ? rounded(x + rounded(bias[tile_.first + output])) : x;
  }
  FOVEA_DEVICE void finish(int output, int r) const {
    const int outputs = tile_.matrix->outputs;
    if (r >= here_ || tile_.first + output >= outputs) return;
    const int64_t row = first_row_ + r;
    if (p_.end == ProductEnd::logits) {
      p_.stream.step->logits[row * outputs + tile_.first + output] = sum_of(0, output, r);
      return;
    }
    float x = rounded_sum(0, output, r);
    if (p_.end != ProductEnd::narrow) x = activated_number(p_.activation, x);
    if constexpr (kGated) {  // SwiGLU is one operation, other gates are two
      if (p_.activation != Activation::silu) x = rounded(x);
      x *= rounded_sum(1, output, r);
    }
    p_.y[row * p_.y_stride + tile_.at + output] = bits_of(x);
  }

  const ProductParameters& p_;
  const int first_row_, steps_, row_bytes_;
  const OutputTile tile_;
  const int warp_ = threadIdx.x / 32, g_ = threadIdx.x % 32 / 4, t_ = threadIdx.x % 4;
  const uint32_t scratch_ = shared_base(), parts_ = scratch_ + 64, rows_ = parts_ + Shape::kSums;
  int here_;  // rows of this block
  WeightPiece pieces_[kMatrices][kAhead];
  float sums_[kMatrices][kTiles][4] = {};
};

template <int kTiles, bool kGated, bool kFused>
FOVEA_KERNEL(kDecodeThreads, 1)
product_kernel(const __grid_constant__ ProductParameters p) {
  start_dependents();
  ProductBlock<kTiles, kGated, kFused>(p).run();
}

}  // namespace fovea::kernels::cuda
