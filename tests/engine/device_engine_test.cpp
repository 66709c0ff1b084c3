// The engine on a device: short prompts are read in one pass, and every text is that of the CPU.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/engine/tiny_engine.h"
#include "tests/support/devices.h"

namespace fovea::device_engine_test {
namespace {

using namespace fovea::testing;

std::vector<EngineModel> one_model_on(at::Device device) {
  Transformer model(engine_config().resolved(bytes().vocab_size()), 4, device);
  {
    const at::NoGradGuard no_grad;
    model.parameters().find("model.embed_tokens.weight")->value.mul_(6.0);
  }
  const ModelConfig resolved = model.config();
  std::vector<EngineModel> models;
  models.push_back({.name = "base",
                    .loaded = {.config = resolved,
                               .model = std::move(model),
                               .tokenizer = byte_tokenizer(),
                               .chat_template = ""}});
  return models;
}

/// Prompts of like and of other lengths, one of several chunks, one of a whole chunk.
std::vector<EngineRequest> requests() {
  std::vector<EngineRequest> all;
  for (const int64_t length : {20, 22, 300, 24, 127, 3, 21}) {
    EngineRequest request{.text = varied_text(length, length), .generate = greedy(6)};
    request.ignore_end = true;
    all.push_back(request);
  }
  all[1].choices = 2;
  all[3].generate.max_tokens = 0;
  return all;
}

TEST(DeviceEngine, TextsAreThoseOfTheCpu) {
  const EngineOptions options{.chunk = 128};
  Engine here(one_model(), options);
  const std::vector<Answer> expected = answers_of(here, requests());
  for (const at::Device device : all_devices()) {
    Engine there(one_model_on(device), options);
    const std::vector<Answer> got = answers_of(there, requests());
    for (size_t n = 0; n < got.size(); ++n)
      expect_same(got[n], expected[n], "request " + std::to_string(n));
    // Again, with the whole chunk of two prompts in the cache of beginnings.
    const std::vector<Answer> again = answers_of(there, requests());
    for (size_t n = 0; n < again.size(); ++n)
      expect_same(again[n], expected[n], "again, request " + std::to_string(n));
    EXPECT_EQ(again[2].prompts.front().cached, 256);
  }
}

}  // namespace
}  // namespace fovea::device_engine_test
