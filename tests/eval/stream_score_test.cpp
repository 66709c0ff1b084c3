// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/stream_score.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/eval/scoring.h"
#include "tests/support/expect_error.h"
#include "tests/support/tiny_model.h"

namespace fovea::stream_score_test {
namespace {

using testing::tiny_config;

std::vector<int32_t> tokens_of(size_t count) {
  std::vector<int32_t> tokens{byte_tokenizer()->bos()};
  for (size_t i = 1; i < count; ++i) tokens.push_back(static_cast<int32_t>((7 * i * i + i) % 251));
  return tokens;
}

std::string text_of(std::span<const int32_t> tokens) {
  std::string text;
  for (const int32_t token : tokens.subspan(1)) text += static_cast<char>(token);
  return text;
}

TEST(StreamScore, IsTheScoreOfOneWindowWhateverThePartsAndChunks) {
  const Transformer model(tiny_config(), 5);
  const std::vector<int32_t> tokens = tokens_of(60);
  const ScoreResult whole = score_text(
      model, *byte_tokenizer(), std::vector<ScoreDocument>{{"s", text_of(tokens)}}, {.window = 64});
  for (const StreamOptions& options :
       {StreamOptions{.part = 1000, .chunk = 256}, StreamOptions{.part = 25, .chunk = 7}}) {
    int64_t last = 0;
    const StreamScore score = score_stream(model, tokens, options, [&](int64_t done, int64_t all) {
      EXPECT_GT(done, last);
      EXPECT_EQ(all, 59);
      last = done;
    });
    EXPECT_EQ(last, 59);
    EXPECT_NEAR(std::log(score.perplexity()), whole.total.nll / 59, 1e-5);
  }
}

TEST(StreamScore, PartsCoverTheText) {
  const Transformer model(tiny_config(), 5);
  const StreamScore score = score_stream(model, tokens_of(60), {.part = 25, .chunk = 7});
  ASSERT_EQ(score.parts.size(), 3U);
  EXPECT_EQ(score.parts[0].end, 25);
  EXPECT_EQ(score.parts[1].end, 50);
  EXPECT_EQ(score.parts[2].end, 59);
  EXPECT_EQ(score.parts[2].tokens, 9);
  const StreamScore first = score_stream(model, tokens_of(26), {.part = 25, .chunk = 25});
  EXPECT_NEAR(score.parts[0].perplexity(), first.perplexity(), 1e-2);
  const auto json = score.to_json();
  EXPECT_EQ(json["parts"][1]["end"], 50);
  EXPECT_EQ(json["perplexity"].get<double>(), score.perplexity());
}

TEST(StreamScore, ABoundedCacheStaysAsLargeAsItIs) {
  ModelConfig config = tiny_config();
  config.attention.spec.streaming = {.recent = 8, .start = 2};
  const Transformer model(config, 5);
  const StreamScore score = score_stream(model, tokens_of(400), {.part = 100, .chunk = 16});
  ASSERT_EQ(score.parts.size(), 4U);
  EXPECT_EQ(score.parts[3].cache_bytes, score.parts[0].cache_bytes);
  const StreamScore small = score_stream(model, tokens_of(100), {.part = 100, .chunk = 3});
  EXPECT_NEAR(small.perplexity(),
              score_stream(model, tokens_of(100), {.part = 100, .chunk = 16}).perplexity(), 1e-2)
      << "chunks are of no effect";
}

TEST(StreamScore, RefusesBadInputByName) {
  const Transformer model(tiny_config(), 5);
  EXPECT_ERROR(InputError, score_stream(model, tokens_of(1)), "stream", "two tokens", "1");
  EXPECT_ERROR(ConfigError, score_stream(model, tokens_of(9), {.part = 0}), "stream", "0");
  EXPECT_ERROR(ConfigError, score_stream(model, tokens_of(9), {.chunk = -1}), "stream", "-1");
}

}  // namespace
}  // namespace fovea::stream_score_test
