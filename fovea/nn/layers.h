// Norms, activations and position embeddings of every architecture option (spec 6.6, 7.1, 7.4).
//
// The default model's parts are one fused kernel each (ops.h); the rest are compositions of torch
// operations.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "fovea/kernels/common/activation.h"
#include "fovea/kernels/common/weight_format.h"
#include "fovea/nn/model_options.h"

namespace fovea {

/// Weight and bias [c] of a norm; undefined where its kind has none.
struct NormWeights {
  at::Tensor weight_c, bias_c;
};

/// The weights of the norm that gives `factor` times as much: for x [..., c], float64 for float64.
NormWeights scaled(const NormWeights& weights, double factor, const at::Tensor& x_rc);

/// A norm over the last axis; statistics in float32 (float64 for float64).
at::Tensor normalise(NormKind kind, const at::Tensor& x_rc, const NormWeights& weights, double eps);

/// (s, y) with s = x + delta and y = normalise(s).
std::pair<at::Tensor, at::Tensor> add_normalise(NormKind kind, const at::Tensor& x_rc,
                                                const at::Tensor& delta_rc,
                                                const NormWeights& weights, double eps);

/// x W^T + b for all weights stacked; `biases` has one entry a weight, undefined = none.
at::Tensor stacked_linear(const at::Tensor& x_rc, const std::vector<at::Tensor>& weights,
                          const std::vector<at::Tensor>& biases, kernels::Activations activations);

/// a(x) of [..., f]. Where `gated`: a(gate) * up of [..., 2f] = gate ++ up.
/// kernels/common/activation.h has the formula of one number.
at::Tensor activate(kernels::Activation activation, bool gated, const at::Tensor& x_rf);

/// Row p, column 2t: sin(p / 10000^(2t/width)), column 2t + 1: cos; [positions, width].
at::Tensor sinusoidal_table(int64_t positions, int64_t width, at::ScalarType dtype = at::kFloat);

}  // namespace fovea
