// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/scoring.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "fovea/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/tiny_model.h"

namespace fovea::scoring_test {
namespace {

using testing::tiny_config;

/// NLL of the last `scored` tokens of `text`, given BOS (or the token before) and what stands in
/// inputs [begin, end).
double by_hand(const Transformer& model, const std::string& text, size_t begin, size_t end,
               size_t scored) {
  std::vector<int64_t> inputs{byte_tokenizer()->bos()};
  for (const char c : text) inputs.push_back(static_cast<uint8_t>(c));
  const at::NoGradGuard no_grad;
  const at::Tensor row =
      at::tensor(std::vector<int64_t>(inputs.begin() + begin, inputs.begin() + end));
  const at::Tensor logits = model.logits(model.hidden({.tokens_bt = row.unsqueeze(0)}))[0];
  const at::Tensor log_p = at::log_softmax(logits.to(at::kDouble), -1);
  double sum = 0;
  for (size_t i = end - scored; i < end; ++i) {
    sum -= log_p[static_cast<int64_t>(i - begin)][inputs[i + 1]].item<double>();
  }
  return sum;
}

class Scoring : public ::testing::Test {
 protected:
  ScoreResult score(const std::vector<ScoreDocument>& documents, const ScoreOptions& options = {}) {
    return score_text(model_, *byte_tokenizer(), documents, options);
  }
  Transformer model_{tiny_config(), 5};
  const std::string text_ = "Attention is a lens; it has a focus.";  // 36 bytes
};

TEST_F(Scoring, DisjointWindowsHaveOneTokenOfContextAndScoreEveryTokenOnce) {
  const ScoreResult result = score({{"s", text_}});
  EXPECT_EQ(result.options.window, 16);
  EXPECT_EQ(result.total.tokens, 36);
  const double expected = by_hand(model_, text_, 0, 16, 16) + by_hand(model_, text_, 16, 32, 16) +
                          by_hand(model_, text_, 32, 36, 4);
  EXPECT_NEAR(result.total.nll, expected, 1e-3);
}

TEST_F(Scoring, AStrideScoresTheLastTokensOfOverlappingWindows) {
  const ScoreResult result = score({{"s", text_}}, {.window = 16, .stride = 6});
  const double expected = by_hand(model_, text_, 0, 16, 16) + by_hand(model_, text_, 6, 22, 6) +
                          by_hand(model_, text_, 12, 28, 6) + by_hand(model_, text_, 18, 34, 6) +
                          by_hand(model_, text_, 24, 36, 2);
  EXPECT_NEAR(result.total.nll, expected, 1e-3);
  EXPECT_EQ(result.total.tokens, 36);
}

TEST_F(Scoring, RowsOfABatchDoNotChangeTheScore) {
  const std::vector<ScoreDocument> documents = {
      {"a", text_}, {"b", "short"}, {"a", "x"}, {"b", text_ + text_}};
  const double one = score(documents, {.rows = 1}).total.nll;
  for (const int64_t rows : {2, 3, 64})
    EXPECT_NEAR(score(documents, {.rows = rows}).total.nll, one, 1e-3);
}

TEST_F(Scoring, PerplexitiesAreThoseOfTheSpecification) {
  const ScoreResult result =
      score({{"s", "caf\xC3\xA9 noir\n\nx "}});  // 10 bytes + newlines, 4 pieces of split
  const ScoreTotals& t = result.total;
  EXPECT_EQ(t.bytes, 14);
  EXPECT_EQ(t.words, 4);  // "caf\xC3\xA9", "noir", "x", "" as Python's re.split counts
  EXPECT_NEAR(t.token_perplexity(), std::exp(t.nll / 14), 1e-9);
  EXPECT_NEAR(t.word_perplexity(), std::exp(t.nll / 4), 1e-9 * t.word_perplexity());
  EXPECT_NEAR(t.bits_per_byte(), std::log(t.byte_perplexity()) / std::numbers::ln2, 1e-12);
}

TEST_F(Scoring, SourcesAndPositionsAddUpToTheTotal) {
  const ScoreResult result = score({{"a", text_}, {"b", "bb"}, {"a", ""}});
  ASSERT_EQ(result.sources.size(), 2u);
  EXPECT_EQ(result.sources[0].first, "a");
  EXPECT_EQ(result.sources[0].second.documents, 2);
  EXPECT_EQ(result.sources[1].second.tokens, 2);
  double nll = 0;
  int64_t tokens = 0;
  for (const PositionBucket& bucket : result.positions) {
    nll += bucket.nll;
    tokens += bucket.tokens;
  }
  EXPECT_NEAR(nll, result.total.nll, 1e-6);
  EXPECT_EQ(tokens, 38);
  EXPECT_EQ(result.positions.front().tokens, 4);  // three windows of the first, one of the second
  const auto json = result.to_json();
  EXPECT_EQ(json["positions"].back()["to"], 16);
  EXPECT_EQ(json["sources"]["b"]["tokens"], 2);
}

TEST_F(Scoring, ALeakingTemperatureDoesNotSeeTheFillOfItsRow) {
  ModelConfig config = tiny_config();
  config.attention.spec.temperature.kind = TemperatureSpec::Kind::learned;
  config.attention.spec.temperature.form = TemperatureSpec::Form::sequence;
  config.attention.spec.temperature.bound = TemperatureSpec::Bound::sigmoid;
  Transformer model(config, 5);
  for (Parameter& parameter : model.parameters().all()) {
    const at::NoGradGuard no_grad;
    if (parameter.name.ends_with("temperature.weight")) parameter.value.fill_(0.5);
  }
  const std::vector<ScoreDocument> documents = {{"a", text_.substr(0, 16)}, {"a", "short"}};
  const double together = score_text(model, *byte_tokenizer(), documents, {.rows = 2}).total.nll;
  const double apart = score_text(model, *byte_tokenizer(), documents, {.rows = 1}).total.nll;
  EXPECT_NEAR(together, apart, 1e-3);
}

TEST_F(Scoring, ALossThatIsNoNumberIsAnError) {
  const at::NoGradGuard no_grad;
  model_.parameters().find("model.norm.weight")->value.fill_(std::nan(""));
  EXPECT_ERROR(NumericalError, score({{"book", text_}}), "'book'", "nan");
}

TEST(ScoreText, APassThatNoMemoryHoldsIsRefusedBeforeItRuns) {
  ModelConfig wide = tiny_config();
  wide.ffn_width = 2'000'000;
  wide.width = 1 << 16;
  const Transformer shape(wide, 0, at::kMeta);  // it could not run
  const std::vector<ScoreDocument> book{{"s", std::string(1 << 22, 'x')}};
  EXPECT_THROW(score_text(shape, *byte_tokenizer(), book, {.window = 1 << 19, .rows = 8}),
               std::bad_alloc);
}

TEST_F(Scoring, ALongDocumentTellsHowFarItIsBeforeEveryWindow) {
  std::vector<int64_t> told;
  const std::vector<ScoreDocument> book{{"s", text_}};
  score_text(model_, *byte_tokenizer(), book, {.window = 16}, [&](int64_t done, int64_t total) {
    EXPECT_EQ(total, std::ssize(text_));
    told.push_back(done);
  });
  EXPECT_EQ(std::ssize(told), (std::ssize(text_) + 15) / 16 + 1);
  EXPECT_TRUE(std::ranges::is_sorted(told));
  EXPECT_EQ(told.front(), 0);
  EXPECT_EQ(told.back(), std::ssize(text_));
}

TEST_F(Scoring, ImpossibleOptionsAndEmptyTextAreRefused) {
  EXPECT_ERROR(ConfigError, score({{"a", "x"}}, {.window = 4, .stride = 5}), "stride", "5");
  EXPECT_ERROR(ConfigError, score({{"a", "x"}}, {.window = -1}), "window");
  EXPECT_ERROR(InputError, score({{"a", ""}}), "token");
  EXPECT_ERROR(InputError, score({}), "0 documents");
}

}  // namespace
}  // namespace fovea::scoring_test
