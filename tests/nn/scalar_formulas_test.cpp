// Formulas of one number in kernels/common against the tensor operations of the layers.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/common/scalar_formulas.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "fovea/attention/attention.h"
#include "fovea/attention/mechanisms/focal.h"
#include "fovea/attention/mechanisms/focus.h"
#include "fovea/nn/block_description.h"
#include "fovea/nn/layers.h"

namespace fovea::scalar_formulas_test {
namespace {

TEST(ScalarFormulas, ActivationsEqualThoseOfTheLayers) {
  const at::Tensor x = at::arange(-8.0, 8.0, 0.125, at::kFloat);
  const auto names = enum_names(FeedForward{});
  for (size_t n = 0; n < names.size(); ++n) {
    const auto kind = static_cast<FeedForward>(n);
    const kernels::Activation activation = activation_of(kind);
    const at::Tensor twice = at::stack({x, at::ones_like(x)}, 0).flatten().unsqueeze(0);
    const at::Tensor tensor = activate(activation, gated(kind), gated(kind) ? twice : x).flatten();
    for (int64_t i = 0; i < x.numel(); ++i) {
      float one = 0.0f;
      kernels::with_activation(activation, [&]<kernels::Activation a>() {
        one = kernels::activated<a>(x[i].item<float>());
      });
      EXPECT_NEAR(one, tensor[i].item<float>(), 1e-5) << names[n] << " of " << x[i].item<float>();
    }
  }
}

TEST(ScalarFormulas, BoundedTemperaturesEqualThoseOfTheLayers) {
  TemperatureSpec spec{.kind = TemperatureSpec::Kind::learned,
                       .form = TemperatureSpec::Form::global};
  for (const auto bound : {TemperatureSpec::Bound::clip, TemperatureSpec::Bound::sigmoid,
                           TemperatureSpec::Bound::straight_through}) {
    spec.bound = bound;
    const kernels::TemperatureBounds bounds{.low = spec.low(64),
                                            .high = spec.high(64),
                                            .sigmoid = bound == TemperatureSpec::Bound::sigmoid};
    for (const float raw : {-20.0f, -0.5f, 0.0f, 4.0f, 5.5f, 30.0f}) {
      const TemperatureParameters parameters{{}, at::full({}, raw)};
      const at::Tensor tau =
          temperature_rows(spec, 64, parameters, at::zeros({1, 1, 2}), {}).tau_bt;
      EXPECT_NEAR(kernels::bounded_temperature(raw, bounds), tau.item<double>(), 1e-6) << raw;
    }
  }
}

TEST(ScalarFormulas, TopGroupsEqualThoseOfTheLayersTiesIncluded) {
  const std::vector<std::vector<float>> rows{
      {0.5f, 0.5f, 0.5f, 0.5f}, {1.0f, 3.0f, 2.0f, 3.0f}, {-1.0f, -2.0f, -1.0f, -3.0f}};
  for (const std::vector<float>& row : rows) {
    for (int64_t top_k = 1; top_k <= 4; ++top_k) {
      std::vector<float> scores = row;
      const auto expected =
          static_cast<uint64_t>(top_members(at::tensor(row), top_k).item<int64_t>());
      EXPECT_EQ(kernels::top_groups(scores, top_k), expected) << top_k;
    }
  }
}

TEST(ScalarFormulas, SoftmaxEqualsThatOfTheLayers) {
  for (const std::vector<float>& row :
       {std::vector<float>{0.5f}, {90.0f, -3.0f, 88.0f}, {-400.0f, -401.0f, -400.0f}}) {
    std::vector<float> weights = row;
    kernels::softmax(weights);
    EXPECT_TRUE(at::allclose(at::tensor(weights), at::softmax(at::tensor(row), -1), 1e-6, 1e-7));
  }
}

}  // namespace
}  // namespace fovea::scalar_formulas_test
