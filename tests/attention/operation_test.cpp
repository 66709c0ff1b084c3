// The one autograd class of our kernels, by an operation that needs no kernel.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/operation.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace fovea {
namespace {

// x factor, and the sum of x, which has no gradient.
struct Scaled : Operation {
  double factor = 1.0;
  mutable std::vector<bool> asked;

  Tensors forward(const Tensors& inputs, Tensors& kept) const override {
    kept = {inputs[0]};
    return {inputs[0] * factor, inputs[0].sum()};
  }
  Tensors backward(const Tensors& kept, const Tensors& grads,
                   const std::vector<bool>& wanted) const override {
    asked = wanted;
    EXPECT_EQ(kept.size(), 1u);
    EXPECT_FALSE(grads[1].defined());
    return {grads[0] * factor, at::Tensor()};
  }
  size_t differentiable() const override { return 1; }
};

TEST(Operation, GivesTheGradientsOfItsInputsAndOfTheFirstResultsAlone) {
  const at::Tensor x = at::arange(4, at::kDouble).set_requires_grad(true);
  auto scaled = c10::make_intrusive<Scaled>();
  scaled->factor = 3.0;
  const Operation::Tensors results = run_operation(scaled, {x, at::empty({0}, at::kDouble)});
  EXPECT_TRUE(results[0].requires_grad());
  EXPECT_FALSE(results[1].requires_grad());
  results[0].sum().backward();
  EXPECT_TRUE(x.grad().equal(at::full({4}, 3.0, at::kDouble)));
  EXPECT_EQ(scaled->asked, (std::vector<bool>{true, false}));
}

TEST(Operation, MakesNoGraphWhereNoInputHasAGradient) {
  const Operation::Tensors results =
      run_operation(c10::make_intrusive<Scaled>(), {at::ones({3}, at::kDouble)});
  EXPECT_FALSE(results[0].requires_grad());
}

}  // namespace
}  // namespace fovea
