// Many texts on a device whose compiled decoder takes them together: their prompts are read in one
// pass where they are of like length.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "fovea/infer/generate.h"
#include "fovea/infer/text_writer.h"
#include "tests/infer/tiny_writer.h"
#include "tests/support/devices.h"
#ifdef FOVEA_FAKE_KERNELS
#include "tests/support/fake_kernels.h"
#endif

namespace fovea::device_texts_test {
namespace {

using namespace fovea::testing;

class DeviceTexts : public ::testing::Test {
#ifdef FOVEA_FAKE_KERNELS
  const FakeDeviceKernels kernels_;
#endif
};

Transformer tiny_on(at::Device device, ModelConfig config = writer_config()) {
  config.context = 64;
  Transformer model(config.resolved(bytes().vocab_size()), 4, device);
  const at::NoGradGuard no_grad;
  model.parameters().find("model.embed_tokens.weight")->value.mul_(6.0);
  model.compute().dtype = at::kBFloat16;
  model.hold_matrices_in(at::kBFloat16);
  return model;
}

TEST_F(DeviceTexts, TogetherAsAlone) {
  for (const at::Device device : all_devices()) {
    const Transformer model = tiny_on(device);
    std::vector<TextRequest> requests;
    for (const int64_t length : {7, 8, 30, 9, 1, 31, 8}) {
      std::string prompt;
      for (int64_t i = 0; i < length; ++i) prompt += static_cast<char>('a' + (i * i + length) % 26);
      requests.push_back({.prompt = prompt, .options = greedy(5)});
    }
    for (const int64_t batch : {3, 8}) {
      size_t count = 0;
      generate_texts(model, bytes(), requests, {},
                     [&](size_t n, const GenerateResult& got) {
                       const GenerateResult alone =
                           generate_text(model, bytes(), requests[n].prompt, requests[n].options);
                       EXPECT_EQ(got.text, alone.text) << n;
                       EXPECT_EQ(got.tokens, alone.tokens) << n;
                       EXPECT_EQ(got.path.name, alone.path.name) << n;
                       ++count;
                     },
                     nullptr, {.batch = batch});
      EXPECT_EQ(count, requests.size());
    }
  }
}

// Arrival decides who begins; like lengths join, up to 8,192 tokens with those that fill rows up.
TEST_F(DeviceTexts, WhichPromptsOnePassReads) {
  using Indices = std::vector<size_t>;
  const auto chosen = [](const Transformer& model, const std::vector<int64_t>& lengths) {
    return read_at_once(model, lengths);
  };
  for (const at::Device device : all_devices()) {
    const Transformer plain = tiny_on(device);
    if (device.is_cpu()) {
      EXPECT_EQ(chosen(plain, {8, 8, 8}), Indices{});
      continue;
    }
    EXPECT_EQ(chosen(plain, {100, 0, 80, 500, 76, 74, 101}), (Indices{0, 2, 4, 6}));
    EXPECT_EQ(chosen(plain, {100, 20, 21}), (Indices{1, 2}));
    EXPECT_EQ(chosen(plain, {100, 20}), Indices{});
    EXPECT_EQ(chosen(plain, {2000, 2000, 0}), Indices{});
    EXPECT_EQ(chosen(plain, std::vector<int64_t>(20, 1000)).size(), 8U);
    ModelConfig windowed = writer_config();
    windowed.attention.spec.mask.window = 4;
    EXPECT_EQ(chosen(tiny_on(device, windowed), {9, 8, 9, 10}), (Indices{0, 2}));
  }
}

}  // namespace
}  // namespace fovea::device_texts_test
