// Draws on every device: the tokens that the same logits give on the CPU. The fake device draws by
// operations, and by the CUDA kernel, emulated.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>

#include "fovea/base/error.h"
#include "fovea/infer/sampling.h"
#include "tests/support/devices.h"
#ifdef FOVEA_FAKE_KERNELS
#include "tests/support/fake_kernels.h"
#endif

namespace fovea::device_sampling_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor random_logits(int64_t texts, int64_t tokens) {
  return at::randn({texts, tokens}, at::detail::createCPUGenerator(3),
                   at::TensorOptions(at::kFloat)) *
         3;
}

/// The parameter: whether the fake device has kernels.
class DeviceSampling : public ::testing::TestWithParam<bool> {
#ifdef FOVEA_FAKE_KERNELS
  void SetUp() override {
    if (GetParam()) kernels_ = std::make_unique<testing::FakeDeviceKernels>();
  }
  std::unique_ptr<testing::FakeDeviceKernels> kernels_;
#endif
};

TEST_P(DeviceSampling, DrawsTheTokensOfTheCpu) {
  for (const int64_t tokens : {1, 31, 1300, 5000}) {
    const at::Tensor here = random_logits(1, tokens)[0];
    for (const at::Device device : testing::all_devices()) {
      const at::Tensor there = here.to(device);
      for (const double temperature : {0.0, 0.05, 0.7, 3.0, 1e5}) {
        Sampler on_cpu({.temperature = temperature}, 9, tokens), on_device = on_cpu;
        for (int n = 0; n < 60; ++n)
          EXPECT_EQ(on_device.next(there), on_cpu.next(here))
              << device << ", " << tokens << " tokens, temperature " << temperature << ", " << n;
      }
    }
  }
}

TEST_P(DeviceSampling, TextsAreDrawnTogetherAsOneByOne) {
  const std::vector<SamplingOptions> all{
      {.temperature = 0.0}, {.temperature = 0.9}, {.repetition_penalty = 1.4},
      {.temperature = 1.7}, {.top_k = 5},         {.temperature = 0.3, .min_p = 0.1}};
  const auto texts = static_cast<int64_t>(all.size());
  const at::Tensor padded = random_logits(texts, 1300);
  for (const at::Device device : testing::all_devices()) {
    // Logits behind those that count, and one row for all texts (choices of one prompt).
    const at::Tensor rows = padded.narrow(1, 0, 1290), one = rows.narrow(0, 2, 1).expand_as(rows);
    for (const at::Tensor& here : {rows, one}) {
      std::vector<Sampler> alone, together;
      for (const SamplingOptions& options : all) alone.emplace_back(options, 11, 1290);
      together = alone;
      std::vector<Sampler*> samplers;
      for (Sampler& sampler : together) samplers.push_back(&sampler);
      const at::Tensor there = here.is_same(rows) ? padded.to(device).narrow(1, 0, 1290)
                                                  : here.narrow(0, 0, 1).to(device).expand_as(here);
      for (int n = 0; n < 20; ++n) {
        const std::vector<DrawnToken> drawn = next_tokens(samplers, there);
        for (int64_t text = 0; text < texts; ++text)
          EXPECT_EQ(drawn[static_cast<size_t>(text)].token,
                    alone[static_cast<size_t>(text)].next(here[text]))
              << device << ", text " << text << ", " << n;
      }
    }
  }
}

TEST_P(DeviceSampling, TiesInfinitiesAndCertainTokens) {
  at::Tensor ties = at::zeros({300}), infinite = random_logits(1, 300)[0],
             nothing = at::full({300}, -kInfinity, at::kFloat),
             certain = at::full({300}, -kInfinity, at::kFloat);
  ties.slice(0, 40, 300, 7) = 2.0;
  infinite[77] = kInfinity;
  certain[299] = 0.5;
  for (const at::Device device : testing::all_devices()) {
    const auto draw = [&](const at::Tensor& logits, double temperature) {
      return Sampler({.temperature = temperature}, 5, 300).next(logits.to(device));
    };
    EXPECT_EQ(draw(ties, 0.0), 40) << device;
    EXPECT_EQ(draw(nothing, 1.0), 0) << device;
    for (const double temperature : {0.0, 1.0}) {
      EXPECT_EQ(draw(infinite, temperature), 77) << device;
      EXPECT_EQ(draw(certain, temperature), 299) << device;
    }
  }
}

TEST_P(DeviceSampling, LogitsThatAreNoNumbersAreRefusedForTheirTextAlone) {
  at::Tensor logits = random_logits(3, 1300);
  logits[1][7] = std::nan("");
  for (const at::Device device : testing::all_devices()) {
    for (const double temperature : {0.0, 0.7}) {
      std::vector<Sampler> texts(3, Sampler({.temperature = temperature}, 0, 1300));
      std::vector<Sampler*> samplers{&texts[0], &texts[1], &texts[2]};
      const auto drawn = next_tokens(samplers, logits.to(device));
      EXPECT_THROW(std::rethrow_exception(drawn[1].error), NumericalError) << device;
      EXPECT_THROW(texts[1].next(logits[1].to(device)), NumericalError) << device;
      EXPECT_FALSE(drawn[0].error || drawn[2].error) << device;
      EXPECT_GE(std::min(drawn[0].token, drawn[2].token), 0) << device;
    }
  }
}

#ifdef FOVEA_FAKE_KERNELS
INSTANTIATE_TEST_SUITE_P(Kernels, DeviceSampling, ::testing::Bool());
#else
INSTANTIATE_TEST_SUITE_P(Kernels, DeviceSampling, ::testing::Values(false));
#endif

}  // namespace
}  // namespace fovea::device_sampling_test
