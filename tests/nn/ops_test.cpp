// The fused operations against their plain formulas in float64, forward and every gradient.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/ops.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "fovea/runtime/own_kernels.h"

namespace fovea::ops_test {
namespace {

using Tensors = std::vector<at::Tensor>;
using Operation = std::function<at::Tensor(const Tensors&)>;

at::Tensor random(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kDouble));
}

double relative_error(const at::Tensor& a, const at::Tensor& b) {
  return ((a.to(at::kDouble) - b).abs().max() / b.abs().max().clamp_min(1e-30)).item<double>();
}

/// Output and gradients of `op` for inputs in `dtype` (weights, the rank-1 and named masters, stay
/// float32 in float32 and bfloat16).
Tensors outputs_and_gradients(const Operation& op, const Tensors& inputs,
                              const std::vector<bool>& master, at::ScalarType dtype) {
  Tensors leaves;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::ScalarType own = master[i] && dtype != at::kDouble ? at::kFloat : dtype;
    leaves.push_back(inputs[i].to(own).detach().clone().set_requires_grad(true));
  }
  const at::Tensor y = op(leaves);
  const at::Tensor weights = random(y.sizes(), 99).to(y.scalar_type());
  (y * weights).sum().backward();
  Tensors result{y.detach()};
  for (const at::Tensor& leaf : leaves) result.push_back(leaf.grad());
  return result;
}

/// float32 within 1e-5 forward and 1e-4 backward of the float64 composition; bfloat16 within 3 %.
void expect_close(const Operation& op, const Tensors& inputs, const std::vector<bool>& master) {
  const Tensors truth = outputs_and_gradients(op, inputs, master, at::kDouble);
  const Tensors narrow = outputs_and_gradients(op, inputs, master, at::kFloat);
  const Tensors half = outputs_and_gradients(op, inputs, master, at::kBFloat16);
  for (size_t i = 0; i < truth.size(); ++i) {
    EXPECT_LT(relative_error(narrow[i], truth[i]), i == 0 ? 1e-5 : 1e-4) << "tensor " << i;
    EXPECT_LT(relative_error(half[i], truth[i]), 0.03) << "tensor " << i;
  }
}

class OpsOfAnyWidth : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Odd, OpsOfAnyWidth, ::testing::Values(1, 3, 19, 97, 257));

TEST_P(OpsOfAnyWidth, RmsNormEqualsItsFormula) {
  expect_close([](const Tensors& x) { return rms_norm(x[0], x[1], 1e-5); },
               {random({5, 7, GetParam()}, 1), random({GetParam()}, 2)}, {false, true});
}

TEST_P(OpsOfAnyWidth, AddRmsNormFeedsBothItsResults) {
  expect_close(
      [](const Tensors& x) {
        auto [sum, y] = add_rms_norm(x[0], x[1], x[2], 1e-5);
        return sum + 2 * y;
      },
      {random({11, GetParam()}, 1), random({11, GetParam()}, 2), random({GetParam()}, 3)},
      {false, false, true});
}

TEST_P(OpsOfAnyWidth, SwigluEqualsItsFormula) {
  expect_close([](const Tensors& x) { return swiglu(x[0]); }, {random({9, 2 * GetParam()}, 1)},
               {false});
}

TEST_P(OpsOfAnyWidth, StackedLinearEqualsSeparateProducts) {
  const int64_t n = GetParam();
  const Tensors inputs{random({4, 3, n}, 1), random({5, n}, 2), random({2, n}, 3)};
  expect_close(
      [](const Tensors& x) {
        return stacked_linear(x[0], {x[1], x[2]});
      },
      inputs, {false, true, true});
  const at::Tensor whole = stacked_linear(inputs[0], {inputs[1], inputs[2]});
  EXPECT_TRUE(at::allclose(whole.narrow(-1, 5, 2), at::linear(inputs[0], inputs[2])));
}

TEST(Ops, CrossEntropyInChunksEqualsOneChunkAndTheFormula) {
  const at::Tensor targets = at::tensor({3, -1, 0, 16, -1, 5, 5, 2, 1, 0, 4}, at::kLong);
  for (const int64_t chunk : {1, 4, 100}) {
    expect_close(
        [&](const Tensors& x) {
          return linear_cross_entropy(x[0], x[1], targets, 0.125, chunk).total;
        },
        {random({11, 6}, 1), random({17, 6}, 2)}, {false, true});
  }
  const at::Tensor hidden = random({11, 6}, 1).to(at::kFloat),
                   weight = random({17, 6}, 2).to(at::kFloat);
  const at::Tensor nll = linear_cross_entropy(hidden, weight, targets, 1.0, 4).nll_r;
  const at::Tensor plain = -at::log_softmax(at::linear(hidden, weight), 1)
                                .gather(1, targets.clamp_min(0).unsqueeze(1))
                                .squeeze(1);
  EXPECT_TRUE(at::allclose(nll, plain * targets.ge(0), 1e-5, 1e-6));
}

TEST(Ops, CrossEntropyGivesLnZOfEveryRowWithATargetOnEveryPath) {
  const at::Tensor targets = at::tensor({3, -1, 0, 16, -1, 5, 5}, at::kLong);
  const at::Tensor hidden = random({7, 6}, 1), weight = random({17, 6}, 2);
  for (const double z_loss : {0.0, 0.1}) {
    const LogitTransform rule{.scale = 2.0, .cap = 3.0, .z_loss = z_loss};
    const at::Tensor logits = at::tanh(at::linear(hidden, weight) * (2.0 / 3.0)) * 3.0,
                     expected = logits.logsumexp(1) * targets.ge(0);
    const auto ln_z = [&](at::ScalarType dtype) {
      return linear_cross_entropy(hidden.to(dtype), weight.to(dtype), targets, 1.0, 4, rule).ln_z_r;
    };
    EXPECT_TRUE(at::allclose(ln_z(at::kDouble), expected, 1e-9, 1e-9));
    EXPECT_TRUE(at::allclose(ln_z(at::kFloat).to(at::kDouble), expected, 1e-5, 1e-5));
    const WithoutOwnKernels plain;
    EXPECT_TRUE(at::allclose(ln_z(at::kFloat).to(at::kDouble), expected, 1e-5, 1e-5));
  }
}

struct HeadCase {
  int64_t heads, kv_heads, d, rotary;
  bool norm;
};
class SplitHeadsOf : public ::testing::TestWithParam<HeadCase> {};
INSTANTIATE_TEST_SUITE_P(Shapes, SplitHeadsOf,
                         ::testing::Values(HeadCase{4, 4, 8, 0, true}, HeadCase{4, 2, 16, 0, false},
                                           HeadCase{3, 1, 10, 4, true},
                                           HeadCase{1, 1, 2, 2, false}));

TEST_P(SplitHeadsOf, EqualsNormThenRopeOfEachHead) {
  const HeadCase c = GetParam();
  const at::Tensor positions = at::tensor({0, 1, 2, 0, 1, 5, 6, 7, 0, 1}, at::kLong).view({2, 5});
  const auto run = [&](const Tensors& x) {
    const bool wide = x[0].scalar_type() == at::kDouble;
    const RopeTable rope = make_rope_table({.rotary_dim = c.rotary}, c.d, 8, at::kCPU,
                                           wide ? at::kDouble : at::kFloat);
    const Heads h = split_heads(x[0], c.heads, c.kv_heads, c.d, c.norm ? x[1] : at::Tensor(),
                                c.norm ? x[2] : at::Tensor(), 1e-5, rope, positions);
    return at::cat({h.q_bhtd, 2 * h.k_bgtd, 3 * h.v_bgtd}, 1);
  };
  Tensors inputs{random({2, 5, (c.heads + 2 * c.kv_heads) * c.d}, 1)};
  if (c.norm) {
    inputs.push_back(random({c.d}, 2));
    inputs.push_back(random({c.d}, 3));
  }
  expect_close(run, inputs, {false, true, true});
}

TEST(Ops, CounterDropoutIsAPureFunctionOfSeedAndSite) {
  const at::Tensor x = at::ones({64, 33});
  const at::Tensor a = counter_dropout(x, 0.25, 7, 3);
  EXPECT_TRUE(at::equal(a, counter_dropout(x, 0.25, 7, 3)));
  EXPECT_FALSE(at::equal(a, counter_dropout(x, 0.25, 7, 4)));
  EXPECT_FALSE(at::equal(a, counter_dropout(x, 0.25, 8, 3)));
  EXPECT_NEAR(a.gt(0).to(at::kDouble).mean().item<double>(), 0.75, 0.03);
  EXPECT_NEAR(a.max().item<float>(), 1.0f / 0.75f, 1e-6);
  EXPECT_TRUE(at::equal(counter_dropout(x, 0.0, 7, 3), x));
}

}  // namespace
}  // namespace fovea::ops_test
