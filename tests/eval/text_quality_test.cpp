// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/text_quality.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/tiny_model.h"

namespace fovea::text_quality_test {
namespace {

using Texts = std::vector<std::vector<int32_t>>;

TEST(TextQuality, DistinctIsOverAllTextsAndRepetitionWithinEach) {
  const Texts texts{{1, 2, 1, 2, 1}, {1, 2}};
  EXPECT_DOUBLE_EQ(distinct_share(texts, 1), 2.0 / 7.0);
  EXPECT_DOUBLE_EQ(distinct_share(texts, 2), 2.0 / 5.0);
  EXPECT_DOUBLE_EQ(repeated_share(texts, 2),
                   0.5 * (1.0 - 2.0 / 4.0));  // the second repeats nothing
  EXPECT_DOUBLE_EQ(repeated_share(texts, 4), 0.0);
  EXPECT_DOUBLE_EQ(distinct_share(texts, 6), 0.0);
}

TEST(TextQuality, AModelAgreesWithItselfAndLessWithAnother) {
  ModelConfig config = testing::tiny_config();
  config.context = 64;
  config = config.resolved(config.vocab_size);
  const Transformer model(config, 1), other(config, 2);
  const GenerateOptions how{.sampling = {.temperature = 0.0}, .max_tokens = 12};
  const std::vector<TextRequest> prompts{{"Once", how}, {"upon a", how}, {"time", how}};
  TextQualityOptions options{.base = &model};
  const TextQuality same = measure_text_quality(model, *byte_tokenizer(), prompts, options);
  options.base = &other;
  const TextQuality apart = measure_text_quality(model, *byte_tokenizer(), prompts, options);
  EXPECT_EQ(same.self_perplexity, same.base_perplexity);
  EXPECT_EQ(same.self_perplexity, apart.self_perplexity);
  EXPECT_LT(same.self_perplexity, apart.base_perplexity);
  EXPECT_LT(apart.agreement, same.agreement);
  EXPECT_EQ(same.texts, 3);
}

TEST(TextQuality, OfNoTextIsRefused) {
  const Transformer model(testing::tiny_config(), 1);
  EXPECT_ERROR(InputError, measure_text_quality(model, *byte_tokenizer(), {}, {}), "got none");
}

}  // namespace
}  // namespace fovea::text_quality_test
