// The copy score (spec 11.7).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/copy_score.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fovea::copy_score_test {
namespace {

using namespace fovea::testing;

Transformer tiny_model() {
  ModelConfig c;
  c.layers = 1, c.width = 16, c.heads = 2, c.ffn_width = 32, c.context = 32;
  return Transformer(c.resolved(byte_tokenizer()->vocab_size()), 1);
}

TEST(CopyScore, OfAModelThatKnowsNothingIsAboutTheVocabularyBothTimes) {
  const CopyScore score =
      copy_score(tiny_model(), *byte_tokenizer(), "abcdefghijklmnopqrstuvwxyz", 8, 10);
  EXPECT_EQ(score.windows, 3);
  EXPECT_NEAR(std::log(score.first), std::log(score.second), 1.0);
  EXPECT_GT(score.second, 50.0);
}

TEST(CopyScore, RefusesTextsThatAreTooShort) {
  EXPECT_ERROR(InputError, copy_score(tiny_model(), *byte_tokenizer(), "abc", 8, 1), "8", "3");
  EXPECT_ERROR(ConfigError, copy_score(tiny_model(), *byte_tokenizer(), "abc", 1, 1), "2");
}

}  // namespace
}  // namespace fovea::copy_score_test
