// The fake device computes what the CPU computes, and counts.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/support/fake_device.h"

namespace fovea::fake_device_test {
namespace {

using namespace fovea::testing;

at::Tensor numbers(at::IntArrayRef sizes) {
  return at::arange(c10::multiply_integers(sizes), at::TensorOptions(at::kFloat)).view(sizes) / 7;
}

TEST(FakeDevice, OperationsViewsAndResultsOfChosenSizeAreThoseOfTheCpu) {
  const at::Tensor x = numbers({4, 6}), there = x.to(fake_device());
  EXPECT_EQ(there.device(), fake_device());
  const auto compute = [](const at::Tensor& a) {
    at::Tensor b = at::matmul(a.t(), a).softmax(-1);
    b.select(0, 1).mul_(2.0);
    b.narrow(1, 2, 3).copy_(b.narrow(1, 0, 3).clone());
    at::Tensor sum = at::empty({0}, b.options());
    at::sum_out(sum, b, at::IntArrayRef{0});
    b.index_put_({at::arange(2, b.options().dtype(at::kLong))}, sum);
    return at::cat({std::get<0>(b.sort(-1)), b.unfold(1, 2, 4).reshape({6, 4})}, 1);
  };
  EXPECT_TRUE(compute(there).cpu().equal(compute(x)));
}

TEST(FakeDevice, GradientsAreThoseOfTheCpu) {
  const auto gradient = [](at::Device device) {
    const at::Tensor x = numbers({3, 5}).to(device).set_requires_grad(true);
    const at::Tensor y = (x.exp().cumsum(1) * x).sum() + x.square().mean();
    torch::autograd::backward({y}, {});
    return x.grad().cpu();
  };
  EXPECT_TRUE(gradient(fake_device()).equal(gradient(at::kCPU)));
}

TEST(FakeDevice, EveryWaitOfTheHostIsCountedOnceAndUploadsAreNot) {
  const at::Tensor x = numbers({4}).to(fake_device());
  const CountedPulls pulls;
  (void)(x + 1.0).mul_(at::scalar_tensor(2.0)).to(at::kDouble);
  EXPECT_EQ(pulls.count(), 0) << pulls.text();
  (void)x.sum().item<double>();
  EXPECT_EQ(pulls.count(), 1) << pulls.text();
  (void)x.cpu();
  EXPECT_EQ(pulls.count(), 2) << pulls.text();
  (void)x.gt(0.2).nonzero();
  EXPECT_EQ(pulls.count(), 3) << pulls.text();
  (void)x.index({x.gt(0.2)});
  EXPECT_EQ(pulls.count(), 4) << pulls.text();
  (void)x.equal(x);
  EXPECT_EQ(pulls.count(), 5) << pulls.text();
  at::Tensor y = x.clone();
  y.index_put_({x.gt(0.2)}, at::zeros({}, x.options()));
  EXPECT_EQ(pulls.count(), 6) << pulls.text();
}

TEST(FakeDevice, RefusesTensorsOfTheOtherSideAndRunsOutOfMemory) {
  const at::Tensor x = numbers({4}).to(fake_device());
  EXPECT_THROW((void)(x + numbers({4})), c10::Error);
  const FakeMemoryLimit limit(1 << 20);
  EXPECT_THROW((void)at::empty({1 << 20}, x.options()), c10::OutOfMemoryError);
}

using FakeDeviceDeathTest = ::testing::Test;

TEST(FakeDeviceDeathTest, AKernelThatReadsItsMemoryEndsTheProgram) {
  const at::Tensor x = numbers({4}).to(fake_device());
  EXPECT_DEATH(
      {
        volatile float y = *x.const_data_ptr<float>();
        (void)y;
      },
      "");
}

}  // namespace
}  // namespace fovea::fake_device_test
