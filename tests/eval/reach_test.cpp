// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/eval/reach.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/tiny_model.h"

namespace fovea::reach_test {
namespace {

using testing::tiny_config;

Transformer model_with(const std::function<void(AttentionSpec&)>& change, int64_t layers = 2) {
  ModelConfig config = tiny_config();
  config.layers = layers;
  config.context = 96;
  change(config.attention.spec);
  return Transformer(config.resolved(config.vocab_size), 3);
}

std::vector<int32_t> text(int64_t tokens) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < tokens; ++i) ids.push_back(static_cast<int32_t>((11 * i + 3) % 97));
  return ids;
}

TEST(Reach, OfFullAttentionIsTheWholeText) {
  const Reach reach = measure_reach(model_with([](AttentionSpec&) {}), text(80));
  EXPECT_EQ(reach.tokens, 80);
  EXPECT_EQ(reach.farthest, 79);
  EXPECT_EQ(reach.points.front().distance, 1);
  EXPECT_EQ(reach.points.back().distance, 79);
}

TEST(Reach, OfAWindowGrowsByItInEveryLayer) {
  for (const int64_t layers : {1, 2, 3}) {
    const Transformer model = model_with([](AttentionSpec& s) { s.mask.window = 9; }, layers);
    for (const int64_t probes : {2, 5, 48}) {
      const Reach reach = measure_reach(model, text(80), probes);
      EXPECT_EQ(reach.farthest, 8 * layers) << layers << " layers, " << probes << " probes";
      for (const ReachPoint& point : reach.points) {
        if (point.distance > 8 * layers) {
          EXPECT_LE(point.change, kLeastChange) << point.distance;
        }
      }
    }
  }
}

TEST(Reach, OfDilatedHeadsIsTheWidestOne) {
  const Transformer model = model_with([](AttentionSpec& s) {
    s.longformer = {.window = 4, .dilation = {1, 3}};
  });
  EXPECT_EQ(measure_reach(model, text(80)).farthest, 2 * 4 * 3);
}

TEST(Reach, RefusesBadInputByName) {
  const Transformer model = model_with([](AttentionSpec&) {});
  EXPECT_ERROR(InputError, measure_reach(model, text(1)), "reach", "two tokens", "1");
  EXPECT_ERROR(ConfigError, measure_reach(model, text(5), 1), "reach", "probes", "1");
  EXPECT_EQ(measure_reach(model, text(2)).farthest, 1);
  EXPECT_EQ(measure_reach(model, text(2)).to_json()["farthest"], 1);
}

}  // namespace
}  // namespace fovea::reach_test
