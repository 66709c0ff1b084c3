// Gradients by central differences against autograd, in float64.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <string>
#include <vector>

namespace fovea::testing {

using ScalarFunction = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

/// Gradients of a scalar function; zeros where an input is unused.
inline std::vector<at::Tensor> gradients(const at::Tensor& scalar,
                                         const std::vector<at::Tensor>& inputs) {
  auto grads = torch::autograd::grad({scalar}, inputs, {}, std::nullopt, false, true);
  for (size_t n = 0; n < grads.size(); ++n) {
    if (!grads[n].defined()) grads[n] = at::zeros_like(inputs[n]);
  }
  return grads;
}

/// Fails the current test unless d f / d inputs[n] by autograd equals central differences for every
/// element. Inputs are float64 leaves that require gradients; `f` returns a scalar and is smooth
/// within `step` of the inputs.
inline void expect_gradients(const ScalarFunction& f, const std::vector<at::Tensor>& inputs,
                             const std::string& what = "", double step = 1e-5,
                             double tolerance = 2e-7) {
  const std::vector<at::Tensor> grads = gradients(f(inputs), inputs);
  const at::NoGradGuard no_gradient;
  for (size_t n = 0; n < inputs.size(); ++n) {
    ASSERT_EQ(inputs[n].scalar_type(), at::kDouble);
    ASSERT_TRUE(inputs[n].is_contiguous());
    const at::Tensor analytic = grads[n].contiguous();
    const double scale =
        std::max(1.0, analytic.numel() > 0 ? analytic.abs().max().item<double>() : 0.0);
    double* element = inputs[n].data_ptr<double>();
    for (int64_t e = 0; e < inputs[n].numel(); ++e) {
      const double kept = element[e];
      element[e] = kept + step;
      const double above = f(inputs).item<double>();
      element[e] = kept - step;
      const double below = f(inputs).item<double>();
      element[e] = kept;
      const double numeric = (above - below) / (2.0 * step);
      ASSERT_NEAR(analytic.const_data_ptr<double>()[e], numeric, tolerance * scale)
          << what << ": input " << n << ", element " << e;
    }
  }
}

/// Largest absolute difference over the largest absolute value of `expected` (max-norm, design
/// section 5).
inline double relative_error(const at::Tensor& got, const at::Tensor& expected) {
  if (expected.numel() == 0) return 0.0;
  const at::Tensor e = expected.to(at::kDouble);
  const double size = e.abs().max().item<double>();
  return (got.to(at::kDouble) - e).abs().max().item<double>() / std::max(size, 1e-30);
}

}  // namespace fovea::testing
