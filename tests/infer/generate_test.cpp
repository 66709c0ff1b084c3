// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/infer/generate.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "fovea/base/error.h"

namespace fovea {
namespace {

Transformer tiny() {
  ModelConfig c;
  c.layers = 1;
  c.width = 16;
  c.heads = 2;
  c.context = 24;
  return Transformer(c.resolved(byte_tokenizer()->vocab_size()), 4);
}

TEST(Generate, GreedyTextIsTheArgmaxOfTheFullForward) {
  const Transformer model = tiny();
  const auto tokenizer = byte_tokenizer();
  const std::string text =
      generate_text(model, *tokenizer, "ab", {.temperature = 0.0, .max_tokens = 5});
  std::vector<int32_t> ids{tokenizer->bos()};
  tokenizer->append("ab", ids);
  std::vector<int32_t> made;
  for (int i = 0; i < 5; ++i) {
    ModelInput input;
    input.tokens_bt = at::tensor(at::ArrayRef<int32_t>(ids), at::kInt).to(at::kLong).unsqueeze(0);
    const at::NoGradGuard no_grad;
    const auto next = static_cast<int32_t>(model.logits(model.hidden(input))
                                               .select(1, -1)
                                               .narrow(1, 0, tokenizer->vocab_size())
                                               .argmax()
                                               .item<int64_t>());
    if (next == tokenizer->eos()) break;
    ids.push_back(next);
    made.push_back(next);
  }
  EXPECT_EQ(text, tokenizer->decode(made));
}

TEST(Generate, TheSameSeedGivesTheSameTextAndStreamsAllOfIt) {
  const Transformer model = tiny();
  std::string streamed;
  const auto once = [&](uint64_t seed) {
    streamed.clear();
    return generate_text(model, *byte_tokenizer(), "x",
                         {.temperature = 1.0, .max_tokens = 15, .seed = seed},
                         [&](std::string_view piece) { streamed += piece; });
  };
  const std::string a = once(1);
  EXPECT_EQ(a, streamed);
  EXPECT_EQ(a, once(1));
  EXPECT_NE(a, once(2));
}

TEST(Generate, StopsAtTheTrainedContextAndRefusesLongerPrompts) {
  const Transformer model = tiny();
  EXPECT_NO_THROW(
      generate_text(model, *byte_tokenizer(), std::string(20, 'a'), {.max_tokens = 100}));
  EXPECT_THROW(generate_text(model, *byte_tokenizer(), std::string(24, 'a')), InputError);
  EXPECT_THROW(generate_text(model, *byte_tokenizer(), "a", {.temperature = -1.0}), ConfigError);
}

TEST(SampleToken, TopKAndTemperatureChooseAmongTheBest) {
  const at::Tensor logits = at::tensor({0.0f, 3.0f, 1.0f, 3.0f});
  EXPECT_EQ(sample_token(logits, {.temperature = 0.0}, 0.9), 1);  // ties go to the lower index
  for (const double u : {0.0, 0.3, 0.7, 0.999}) {
    EXPECT_EQ(sample_token(logits, {.temperature = 1.0, .top_k = 1}, u), 1);
    const int64_t two = sample_token(logits, {.temperature = 1.0, .top_k = 2}, u);
    EXPECT_EQ(two, u < 0.5 ? 1 : 3);
  }
}

}  // namespace
}  // namespace fovea
