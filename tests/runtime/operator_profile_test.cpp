// Kinds, passes and FLOPs of operations; times are only summed.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/runtime/operator_profile.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "fovea/base/error.h"
#include "tests/support/expect_error.h"

namespace fovea::operator_profile_test {
namespace {

at::Tensor leaf(at::IntArrayRef shape) { return at::rand(shape).set_requires_grad(true); }

double flops(const OperatorCosts& costs, OperatorKind kind, bool backward) {
  return costs.of(kind, backward).flops;
}

TEST(OperatorProfile, CountsProductsByTheirShapesInBothPasses) {
  const at::Tensor x = leaf({5, 7}), w = leaf({7, 11});
  OperatorProfile profile(at::kCPU);
  at::mm(x, w).sum().backward();
  const OperatorCosts costs = profile.take();
  EXPECT_EQ(flops(costs, OperatorKind::product, false), 2.0 * 5 * 7 * 11);
  EXPECT_EQ(flops(costs, OperatorKind::product, true), 2 * 2.0 * 5 * 7 * 11);
  EXPECT_GT(costs.of(OperatorKind::product, true).seconds, 0.0);
  EXPECT_EQ(profile.take().seconds(), 0.0);
}

TEST(OperatorProfile, ProductsThatAddInPlaceAreCounted) {
  const at::Tensor x = at::ones({5, 7}), w = at::ones({7, 11});
  at::Tensor sum = at::zeros({5, 11});
  OperatorProfile profile(at::kCPU);
  sum.addmm_(x, w);
  EXPECT_EQ(flops(profile.take(), OperatorKind::product, false), 2.0 * 5 * 7 * 11);
}

TEST(OperatorProfile, WhatAScopeComputesIsOfItsKindInBothPasses) {
  const at::Tensor x = leaf({5, 7}), w = leaf({7, 11});
  OperatorProfile profile(at::kCPU);
  at::Tensor y;
  {
    const OperatorScope scope(OperatorKind::attention, [] { return 1000.0; });
    y = at::softmax(at::mm(x, w), 1);
  }
  y.sum().backward();
  const OperatorCosts costs = profile.take();
  EXPECT_EQ(flops(costs, OperatorKind::attention, false), 1000.0);
  EXPECT_EQ(flops(costs, OperatorKind::attention, true), 2000.0);
  EXPECT_GT(costs.of(OperatorKind::attention, true).seconds, 0.0);
  for (const bool backward : {false, true}) {
    EXPECT_EQ(flops(costs, OperatorKind::product, backward), 0.0);
    EXPECT_EQ(costs.of(OperatorKind::product, backward).seconds, 0.0);
  }
}

TEST(OperatorProfile, ProductsInALossAreProductsAndScopesInScopesAreOfTheOuterOne) {
  const at::Tensor x = at::rand({5, 7}), w = at::rand({7, 11});
  OperatorProfile profile(at::kCPU);
  {
    const OperatorScope loss(OperatorKind::loss, [] { return 10.0; });
    at::logsumexp(at::mm(x, w), 1);
  }
  {
    const OperatorScope outer(OperatorKind::norm, [] { return 3.0; });
    const OperatorScope inner(OperatorKind::elementwise, [] { return 5.0; });
  }
  const OperatorCosts costs = profile.take();
  EXPECT_EQ(flops(costs, OperatorKind::product, false), 2.0 * 5 * 7 * 11);
  EXPECT_EQ(flops(costs, OperatorKind::loss, false), 10.0);
  EXPECT_EQ(flops(costs, OperatorKind::norm, false), 3.0);
  EXPECT_EQ(flops(costs, OperatorKind::elementwise, false), 0.0);
}

TEST(OperatorProfile, OperationsOutsideOfScopesHaveKindsByTheirNames) {
  const at::Tensor x = leaf({4, 8});
  OperatorProfile profile(at::kCPU);
  at::layer_norm(at::silu(x), {8}).mul(2.0).sum().backward();
  const OperatorCosts costs = profile.take();
  EXPECT_GT(costs.of(OperatorKind::norm, false).seconds, 0.0);
  EXPECT_GT(costs.of(OperatorKind::norm, true).seconds, 0.0);
  EXPECT_GE(flops(costs, OperatorKind::elementwise, false), 2.0 * 32);
  EXPECT_GE(flops(costs, OperatorKind::elementwise, true), 2.0 * 32);
}

TEST(OperatorProfile, WithoutOneScopesAskNothingAndTwoAreRefused) {
  bool asked = false;
  const auto flops = [&] {
    asked = true;
    return 1.0;
  };
  { const OperatorScope scope(OperatorKind::norm, flops); }
  EXPECT_FALSE(asked);
  EXPECT_EQ(OperatorProfile::active(), nullptr);
  const OperatorProfile one(at::kCPU);
  EXPECT_ERROR(ConfigError, OperatorProfile(at::kCPU), "one profile at a time");
  EXPECT_EQ(OperatorProfile::active(), &one);
}

}  // namespace
}  // namespace fovea::operator_profile_test
