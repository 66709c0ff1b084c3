// Prompts of several texts read in one pass: the numbers that each has alone, on every device.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "fovea/nn/transformer.h"
#include "tests/support/decoder_settings.h"
#include "tests/support/devices.h"
#include "tests/support/expect_error.h"

namespace fovea::read_together_test {
namespace {

using namespace decoder_settings;
using testing::all_devices;

/// Texts of these lengths, each with one more token to come.
std::vector<std::vector<int32_t>> texts_of(const std::vector<int64_t>& lengths) {
  std::vector<std::vector<int32_t>> texts;
  for (const int64_t length : lengths) {
    auto& text = texts.emplace_back(static_cast<size_t>(length + 1));
    for (size_t i = 0; i < text.size(); ++i)
      text[i] = static_cast<int32_t>((i * i + 7 * texts.size() + i) % kVocab);
  }
  return texts;
}

std::vector<std::span<const int32_t>> prompts_of(const std::vector<std::vector<int32_t>>& texts) {
  std::vector<std::span<const int32_t>> prompts;
  for (const auto& text : texts) prompts.emplace_back(text.data(), text.size() - 1);
  return prompts;
}

Transformer placed(const ModelConfig& config, at::Device device) {
  Transformer model(config.resolved(kVocab), 3, device);
  model.compute().dtype = at::kFloat;
  return model;
}

void expect_as_alone(const Transformer& model, const std::vector<int64_t>& lengths) {
  const auto texts = texts_of(lengths);
  std::vector<DecodeState> states;
  std::vector<DecodeState*> all;
  for (size_t n = 0; n < texts.size(); ++n)
    states.push_back(model.make_decode_state(1, lengths[n] + 3 + static_cast<int64_t>(n)));
  for (DecodeState& state : states) all.push_back(&state);
  const at::Tensor first = model.read_together(prompts_of(texts), all);
  for (size_t n = 0; n < texts.size(); ++n) {
    DecodeState alone = model.make_decode_state(1, lengths[n] + 3);
    const at::Tensor ids = at::tensor(at::ArrayRef<int32_t>(texts[n]), at::kInt)
                               .to(at::kLong)
                               .unsqueeze(0)
                               .to(model.device());
    const at::Tensor expected = model.decode(ids.narrow(1, 0, lengths[n]), alone)[0];
    EXPECT_TRUE(at::allclose(first[static_cast<int64_t>(n)], expected, 1e-4, 1e-4)) << n;
    EXPECT_EQ(states[n].length(), lengths[n]);
    EXPECT_EQ(states[n].capacity(), lengths[n] + 3 + static_cast<int64_t>(n));
    const at::Tensor token = ids.narrow(1, lengths[n], 1);
    EXPECT_TRUE(
        at::allclose(model.decode(token, states[n]), model.decode(token, alone), 1e-4, 1e-4))
        << n;
  }
}

TEST(ReadTogether, EveryTextHasTheNumbersThatItHasAlone) {
  int64_t unequal = 0;
  for (const at::Device device : all_devices()) {
    for (const auto& [name, config] : options()) {
      SCOPED_TRACE(name);
      const Transformer model = placed(config, device);
      expect_as_alone(model, {9, 9, 9});
      if (!model.reads_together(1, 9)) continue;
      expect_as_alone(model, {9, 4, 1, 8});
      ++unequal;
    }
  }
  EXPECT_GE(unequal, 30);
}

// Pages of 128 rows that the texts share with the pass, and rows behind them.
TEST(ReadTogether, TextsLongerThanAPage) {
  ModelConfig config = small();
  config.context = 400;
  for (const at::Device device : all_devices())
    expect_as_alone(placed(config, device), {300, 257, 129, 290});
}

TEST(ReadTogether, RefusesWhatItCannotRead) {
  const Transformer model = placed(small(), at::kCPU);
  const auto texts = texts_of({4, 3});
  const auto prompts = prompts_of(texts);
  DecodeState a = model.make_decode_state(1, 8), b = model.make_decode_state(1, 8),
              tight = model.make_decode_state(1, 2);
  std::vector<DecodeState*> one{&a}, both{&a, &b}, short_one{&a, &tight};
  EXPECT_ERROR(ShapeError, model.read_together(prompts, one), "a state for each text");
  EXPECT_ERROR(ShapeError, model.read_together(prompts, short_one), "room for 3 tokens");
  model.read_together(prompts, both);
  EXPECT_ERROR(ShapeError, model.read_together(prompts, both), "empty state");

  ModelConfig windowed = small();
  windowed.attention.spec.mask.window = 4;
  const Transformer drops = placed(windowed, at::kCPU);
  EXPECT_TRUE(drops.reads_together(9, 9));
  EXPECT_FALSE(drops.reads_together(8, 9));
  DecodeState c = drops.make_decode_state(1, 8), d = drops.make_decode_state(1, 8);
  std::vector<DecodeState*> others{&c, &d};
  EXPECT_ERROR(UnsupportedError, drops.read_together(prompts, others), "3 to 4 tokens");
}

}  // namespace
}  // namespace fovea::read_together_test
