// Products of pairs in which 0 annihilates NaN.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/isolation.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <limits>

namespace fovea {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// a b, where 0 in a annihilates numbers of b that are not finite; other sums with such are NaN.
at::Tensor annihilating(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor product = at::matmul(a, b);
  if (all_finite(product)) return product;
  const at::Tensor bad = b.isfinite().logical_not();
  const at::Tensor touched = at::matmul((a != 0).to(b.scalar_type()), bad.to(b.scalar_type())) > 0;
  return at::matmul(a, b.masked_fill(bad, 0.0))
      .masked_fill(touched, std::numeric_limits<double>::quiet_NaN());
}

class PairScores : public torch::autograd::Function<PairScores> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k) {
    ctx->save_for_backward({q, k});
    return at::matmul(q, k.transpose(-1, -2));
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& q = saved[0];
    const at::Tensor& k = saved[1];
    return {annihilating(grads[0], k), annihilating(grads[0].transpose(-1, -2), q)};
  }
};

class WeighValues : public torch::autograd::Function<WeighValues> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& weights,
                            const at::Tensor& values) {
    ctx->save_for_backward({weights, values});
    return annihilating(weights, values);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& weights = saved[0];
    at::Tensor of_weights = at::matmul(grads[0], saved[1].transpose(-1, -2));
    if (!all_finite(of_weights)) {
      const at::Tensor unseen = (weights == 0).logical_and(of_weights.isfinite().logical_not());
      of_weights = of_weights.masked_fill(unseen, 0.0);
    }
    return {of_weights, annihilating(weights.transpose(-1, -2), grads[0])};
  }
};

}  // namespace

// Tensors of a device are taken for finite: the answer would wait for it (docs/gpu.md).
bool all_finite(const at::Tensor& x) {
  return !x.is_cpu() || std::isfinite(x.detach().sum().item<double>());
}

at::Tensor pair_scores(const at::Tensor& q, const at::Tensor& k) { return PairScores::apply(q, k); }

at::Tensor weigh_values(const at::Tensor& weights, const at::Tensor& values) {
  return WeighValues::apply(weights, values);
}

}  // namespace fovea
