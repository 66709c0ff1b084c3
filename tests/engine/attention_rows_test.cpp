// Rows of attention have the numbers of `fovea inspect`.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/engine/attention_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <nlohmann/json.hpp>

#include "fovea/compare/inspect.h"
#include "tests/engine/tiny_engine.h"
#include "tests/support/expect_error.h"

namespace fovea::attention_rows_test {
namespace {

using namespace fovea::testing;

AttentionRows rows_of(Engine& engine, const AttentionRowsRequest& request) {
  std::promise<AttentionRows> promise;
  engine.attention_rows(request, [&](std::exception_ptr error, const AttentionRows& rows) {
    error ? promise.set_exception(error) : promise.set_value(rows);
  });
  return promise.get_future().get();
}

ModelConfig focused() {
  ModelConfig c = engine_config(128);
  c.layers = 2;
  c.attention.spec.focus = {
      .gate = FocusSpec::Gate::hard, .groups = 4, .top_k = 1, .window = 5, .sinks = 1};
  c.attention.spec.focus.width = 8;
  return c;
}

TEST(AttentionRows, AreThoseOfInspect) {
  std::vector<ModelConfig> configs(3, engine_config(128));
  configs[1].attention.spec.multi_token.before = {.queries = 2, .keys = 3};
  configs[1].attention.multi_token.init = KernelStart::uniform;
  configs[2] = focused();
  const std::string text = varied_text(60);
  for (const ModelConfig& config : configs) {
    const Transformer model = tiny(config);
    const InspectModel expected = inspect_model("base", model, bytes(), text, {});
    Engine engine(one_model(config));
    const AttentionRows got = rows_of(engine, {.text = text, .queries = {0, 17, 60}, .keys = 1000});
    EXPECT_EQ(inspect_json({.models = {got.inspected}}), inspect_json({.models = {expected}}));
    EXPECT_EQ(got.inspected.tokens, expected.tokens);
    EXPECT_EQ(std::ssize(got.rows), config.layers * config.heads * 3);
    for (const AttentionRow& row : got.rows) {
      const auto map = std::ranges::find_if(expected.maps, [&](const AttentionMap& m) {
        return m.layer == row.layer && m.head == row.head;
      });
      ASSERT_NE(map, expected.maps.end());
      const std::vector<double>& weights = map->rows[static_cast<size_t>(row.query)];
      std::vector<double> sparse(weights.size());
      for (const KeyWeight& of : row.keys) sparse[static_cast<size_t>(of.key)] = of.weight;
      EXPECT_EQ(sparse, weights);
      EXPECT_EQ(row.rest, 0.0);
    }
  }
}

TEST(AttentionRows, KeepTheLargestWeightsAndTellTheRest) {
  Engine engine(one_model(engine_config(128)));
  const AttentionRowsRequest request{.text = varied_text(60), .heads = {1}, .keys = 4};
  const AttentionRow few = rows_of(engine, request).rows.at(0);
  EXPECT_EQ(few.query, 60);
  EXPECT_EQ(few.head, 1);
  ASSERT_EQ(few.keys.size(), 4U);
  double sum = few.rest;
  for (size_t n = 0; n < 4; ++n) {
    sum += few.keys[n].weight;
    if (n > 0) {
      EXPECT_LE(few.keys[n].weight, few.keys[n - 1].weight);
    }
  }
  EXPECT_NEAR(sum, 1.0, 1e-5);
  const auto json = rows_of(engine, request).to_json();
  EXPECT_EQ(json["rows"][0]["keys"].size(), 4U);
  EXPECT_EQ(json["pieces"].size(), 61U);
}

TEST(AttentionRows, PrunedKeysAreThoseWithoutWeight) {
  Engine engine(one_model(focused()));
  const AttentionRows got =
      rows_of(engine, {.text = varied_text(90), .queries = {3, 50, 90}, .keys = 1000});
  ASSERT_EQ(got.pruned.size(), 6U);
  size_t dropped = 0;
  for (const PrunedKeys& pruned : got.pruned) {
    EXPECT_EQ(pruned.visible, pruned.query + 1);
    dropped += pruned.keys.size();
    for (const AttentionRow& row : got.rows) {
      if (row.layer != pruned.layer || row.query != pruned.query) continue;
      for (int64_t key = 0; key <= pruned.query; ++key) {
        const bool has_weight = std::ranges::count(row.keys, key, &KeyWeight::key) > 0;
        const bool is_pruned = std::ranges::count(pruned.keys, key) > 0;
        EXPECT_NE(has_weight, is_pruned) << key;
      }
    }
  }
  EXPECT_GT(dropped, 10U);
}

TEST(AttentionRows, ACancelledRequestIsAnsweredBeforeItsLastLayer) {
  ModelConfig config = engine_config(1024);
  config.layers = 24;
  Engine engine(one_model(config), {.pause_ms = 0});
  const std::string text = varied_text(1000);
  std::promise<std::exception_ptr> promise;
  const RequestHandle handle = engine.attention_rows(
      {.text = text},
      [&](std::exception_ptr error, const AttentionRows&) { promise.set_value(error); });
  handle.cancel();
  const std::exception_ptr error = promise.get_future().get();
  ASSERT_NE(error, nullptr);
  EXPECT_ERROR(EngineClosed, std::rethrow_exception(error), "cancelled");
  EXPECT_EQ(rows_of(engine, {.text = text}).tokens.size(), 1001U);  // others go on
}

TEST(AttentionRows, ALateRequestIsAnsweredInTheMiddle) {
  ModelConfig config = engine_config(1024);
  config.layers = 24;
  Engine engine(one_model(config));
  EXPECT_ERROR(
      DeadlinePassed,
      rows_of(engine, {.text = varied_text(1000), .deadline = std::chrono::milliseconds(1)}),
      "within 1 ms");
}

TEST(AttentionRows, TextsAreWrittenWhileALongTextIsLookedAt) {
  ModelConfig config = engine_config(1024);
  config.layers = 12;
  Engine engine(one_model(config), {.pause_ms = 0});
  const EngineRequest request{.text = "ab", .generate = greedy(30)};
  const Answer alone = answer_of(engine, request);
  const auto answer = std::make_shared<Answer>();
  std::promise<size_t> written;
  engine.submit(request, into(answer));
  engine.attention_rows({.text = varied_text(1000)},
                        [&](std::exception_ptr error, const AttentionRows&) {
                          EXPECT_EQ(error, nullptr);
                          written.set_value(answer->tokens[0].size());
                        });
  EXPECT_GE(written.get_future().get(), 11U);  // a token between two layers
  ASSERT_TRUE(engine.wait());
  expect_same(*answer, alone, "beside a look");
}

TEST(AttentionRows, ImpossibleRequestsAreRefused) {
  Engine engine(one_model(engine_config(128)));
  const auto ask = [&](const AttentionRowsRequest& request) { rows_of(engine, request); };
  EXPECT_ERROR(ConfigError, ask({.text = "ab", .queries = {3}}), "0 to 2", "got 3");
  EXPECT_ERROR(ConfigError, ask({.text = "ab", .layers = {1}}), "layers", "got 1");
  EXPECT_ERROR(ConfigError, ask({.text = "ab", .heads = {-1}}), "heads", "got -1");
  EXPECT_ERROR(ConfigError, ask({.text = "ab", .keys = 0}), "keys", "got 0");
  EXPECT_ERROR(UnknownModel, ask({.model = "other", .text = "ab"}), "'other'");
  EXPECT_ERROR(PromptTooLong, ask({.text = std::string(200, 'a')}), "128", "201");
}

}  // namespace
}  // namespace fovea::attention_rows_test
