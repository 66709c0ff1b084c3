// Draws on a device: the tokens that the same logits give on the CPU.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/infer/sampling.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "fovea/base/error.h"
#include "tests/support/fake_device.h"

namespace fovea::device_sampling_test {
namespace {

at::Tensor random_logits() {
  return at::randn({1300}, at::detail::createCPUGenerator(3), at::TensorOptions(at::kFloat)) * 3;
}

TEST(DeviceSampling, DrawsTheTokensOfTheCpu) {
  const at::Tensor here = random_logits(), there = here.to(testing::fake_device());
  for (const double temperature : {0.0, 0.7, 3.0}) {
    Sampler on_cpu({.temperature = temperature}, 9, 1300), on_device = on_cpu;
    for (int n = 0; n < 100; ++n) EXPECT_EQ(on_device.next(there), on_cpu.next(here)) << n;
  }
}

TEST(DeviceSampling, PenaltiesAndFiltersAreThoseOfTheCpu) {
  const at::Tensor here = random_logits(), there = here.to(testing::fake_device());
  for (const SamplingOptions& options :
       {SamplingOptions{.repetition_penalty = 1.4}, SamplingOptions{.top_k = 5}}) {
    Sampler on_cpu(options, 9, 1300), on_device = on_cpu;
    for (int n = 0; n < 20; ++n) EXPECT_EQ(on_device.next(there), on_cpu.next(here)) << n;
  }
}

TEST(DeviceSampling, LogitsThatAreNoNumbersAreRefused) {
  at::Tensor logits = random_logits();
  logits[7] = std::nan("");
  for (const double temperature : {0.0, 0.7}) {
    Sampler sampler({.temperature = temperature}, 0, 1300);
    EXPECT_THROW(sampler.next(logits.to(testing::fake_device())), NumericalError) << temperature;
  }
}

}  // namespace
}  // namespace fovea::device_sampling_test
