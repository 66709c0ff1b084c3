// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/layers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "fovea/nn/ops.h"
#include "fovea/runtime/operator_profile.h"

namespace fovea {
namespace {

/// Float32 masters as layer_norm takes them: on the CPU beside a narrower x, elsewhere in its
/// dtype.
at::Tensor beside(const at::Tensor& master, const at::Tensor& x) {
  const bool as_x = x.scalar_type() == at::kDouble || !x.is_cpu();
  return master.defined() && as_x ? master.to(x.scalar_type()) : master;
}

bool is_rms(NormKind kind) { return kind == NormKind::rms || kind == NormKind::rms_weightless; }

at::Tensor rms_weight(const at::Tensor& x, const NormWeights& weights) {
  return weights.weight_c.defined() ? weights.weight_c
                                    : at::ones({x.size(-1)}, x.options().dtype(at::kFloat));
}

/// FLOPs of a norm: RMS square, sum, scale, weight; LayerNorm also mean, difference and bias.
double norm_flops(NormKind kind, const at::Tensor& x) {
  return static_cast<double>(x.numel()) * (is_rms(kind) ? 4.0 : 7.0);
}

}  // namespace

NormWeights scaled(const NormWeights& weights, double factor, const at::Tensor& x) {
  if (factor == 1.0) return weights;
  const at::ScalarType dtype = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {weights.weight_c.defined()
              ? weights.weight_c.to(dtype) * factor
              : at::full({x.size(-1)}, factor, x.options().dtype(dtype).requires_grad(false)),
          weights.bias_c.defined() ? weights.bias_c.to(dtype) * factor : at::Tensor()};
}

at::Tensor normalise(NormKind kind, const at::Tensor& x_rc, const NormWeights& weights,
                     double eps) {
  const OperatorScope scope(OperatorKind::norm, [&] { return norm_flops(kind, x_rc); });
  if (is_rms(kind)) return rms_norm(x_rc, rms_weight(x_rc, weights), eps);
  return at::layer_norm(x_rc, {x_rc.size(-1)}, beside(weights.weight_c, x_rc),
                        beside(weights.bias_c, x_rc), eps);
}

std::pair<at::Tensor, at::Tensor> add_normalise(NormKind kind, const at::Tensor& x_rc,
                                                const at::Tensor& delta_rc,
                                                const NormWeights& weights, double eps) {
  const OperatorScope scope(OperatorKind::norm, [&] {
    return norm_flops(kind, x_rc) + static_cast<double>(x_rc.numel());
  });
  if (is_rms(kind)) return add_rms_norm(x_rc, delta_rc, rms_weight(x_rc, weights), eps);
  at::Tensor sum = x_rc + delta_rc;
  at::Tensor normed = normalise(kind, sum, weights, eps);
  return {std::move(sum), std::move(normed)};
}

at::Tensor stacked_linear(const at::Tensor& x_rc, const std::vector<at::Tensor>& weights,
                          const std::vector<at::Tensor>& biases, kernels::Activations activations) {
  at::Tensor product = stacked_linear(x_rc, weights, activations);
  if (std::ranges::none_of(biases, [](const at::Tensor& b) { return b.defined(); })) return product;
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < weights.size(); ++i) {
    parts.push_back(biases[i].defined() ? biases[i]
                                        : at::zeros({weights[i].size(0)}, weights[i].options()));
  }
  return product + (parts.size() == 1 ? parts[0] : at::cat(parts)).to(product.scalar_type());
}

at::Tensor activate(kernels::Activation activation, bool gated, const at::Tensor& x_rf) {
  using kernels::Activation;
  // Four for the activation of a number, one for its product with the gate.
  const OperatorScope scope(OperatorKind::elementwise, [&] {
    return static_cast<double>(x_rf.numel()) * (gated ? 2.5 : 4.0);
  });
  if (gated && activation == Activation::silu) return swiglu(x_rf);
  const std::vector<at::Tensor> parts = gated ? x_rf.chunk(2, -1) : std::vector<at::Tensor>{x_rf};
  const auto active = [&](const at::Tensor& x) {
    switch (activation) {
      case Activation::relu:
        return at::relu(x);
      case Activation::relu_squared:
        return at::relu(x).square();
      case Activation::gelu:
        return at::gelu(x);
      case Activation::gelu_tanh:
        return at::gelu(x, "tanh");
      case Activation::elu:
        return at::elu(x);
      case Activation::sigmoid:
        return at::sigmoid(x);
      case Activation::silu:
        break;
    }
    return at::silu(x);
  };
  return gated ? active(parts[0]) * parts[1] : active(parts[0]);
}

at::Tensor sinusoidal_table(int64_t positions, int64_t width, at::ScalarType dtype) {
  const auto options = at::TensorOptions(at::kDouble);
  const at::Tensor rate =
      (at::arange(0, width, 2, options) * (-std::log(10000.0) / static_cast<double>(width))).exp();
  const at::Tensor angle = at::outer(at::arange(positions, options), rate);
  return at::stack({angle.sin(), angle.cos()}, 2).flatten(1).narrow(1, 0, width).to(dtype);
}

}  // namespace fovea
