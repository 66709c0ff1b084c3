// AttentionSpec: keys, checks, stages (seam 1; section 1 of the design).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/spec.h"

#include <gtest/gtest.h>

#include "fovea/attention/attention.h"
#include "fovea/attention/stages.h"
#include "fovea/base/files.h"
#include "fovea/config/reader.h"
#include "tests/attention/pipeline_tables.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/expect_error.h"

namespace fovea::spec_test {
namespace {

using namespace fovea::testing;

TEST(AttentionSpec, SurvivesJsonUnchangedForEverySetting) {
  for (const auto& [name, spec] : all_specs()) {
    AttentionSpec varied = spec;
    varied.temperature.form = TemperatureSpec::Form::token;
    varied.temperature.bound = TemperatureSpec::Bound::straight_through;
    varied.temperature.scale_bounds = false;
    varied.temperature.tau_min = 4.25;
    varied.dropout = 0.125;
    AttentionSpec read;
    read_fields(parse_json(fields_to_json(varied).dump(), name), read);
    EXPECT_EQ(read, varied) << name;
  }
}

TEST(AttentionSpec, RefusesUnknownKeysWithTheNearestOne) {
  AttentionSpec spec;
  EXPECT_ERROR(ConfigError, read_fields(parse_json(R"({"soft_capp": 3})", "case"), spec),
               "soft_capp", "soft_cap");
}

template <class E>
void expect_refused(const std::function<void(AttentionSpec&)>& change,
                    const std::vector<std::string>& parts) {
  AttentionSpec spec = small_spec();
  change(spec);
  EXPECT_TRUE(throws_naming<E>([&] { spec.check(); }, parts));
}

TEST(AttentionSpec, RefusesImpossibleSettingsByName) {
  using Spec = AttentionSpec;
  using Sparsity = MaskRule::Sparsity;
  expect_refused<ConfigError>([](Spec& s) { s.heads = 0; }, {"heads", "0"});
  expect_refused<ConfigError>([](Spec& s) { s.heads = 5, s.kv_heads = 2; }, {"kv_heads", "5", "2"});
  expect_refused<ConfigError>([](Spec& s) { s.head_dim = 0; }, {"head_dim"});
  expect_refused<ConfigError>([](Spec& s) { s.value_dim = -1; }, {"value_dim"});
  expect_refused<ConfigError>([](Spec& s) { s.scale = -1.0; }, {"scale"});
  expect_refused<ConfigError>([](Spec& s) { s.temperature.value = 0.0; }, {"temperature.value"});
  expect_refused<ConfigError>(
      [](Spec& s) {
        s.temperature.kind = TemperatureSpec::Kind::learned, s.temperature.tau_min = 0.0;
      },
      {"tau_min"});
  expect_refused<ConfigError>(
      [](Spec& s) {
        s.temperature.kind = TemperatureSpec::Kind::learned, s.temperature.tau_max = 5.0;
      },
      {"tau_max"});
  expect_refused<ConfigError>([](Spec& s) { s.soft_cap = -2.0; }, {"soft_cap"});
  expect_refused<ConfigError>([](Spec& s) { s.mask.window = -1; }, {"mask.window"});
  expect_refused<ConfigError>([](Spec& s) { s.mask.sinks = -1; }, {"mask.sinks"});
  expect_refused<ConfigError>([](Spec& s) { s.mask.stride = 2; }, {"mask.stride", "full"});
  expect_refused<ConfigError>([](Spec& s) { s.mask.sparsity = Sparsity::strided; },
                              {"mask.stride"});
  expect_refused<ConfigError>([](Spec& s) { s.mask.sparsity = Sparsity::fixed; }, {"mask.block"});
  expect_refused<ConfigError>(
      [](Spec& s) { s.mask = {.sparsity = Sparsity::fixed, .block = 2, .summary = 3}; },
      {"mask.summary"});
  expect_refused<UnsupportedError>(
      [](Spec& s) { s.mask = {.window = 4, .sparsity = Sparsity::fixed, .block = 2}; },
      {"window", "fixed"});
  expect_refused<UnsupportedError>(
      [](Spec& s) { s.mask.causal = false, s.bias.kind = BiasSpec::Kind::alibi; },
      {"alibi", "causal"});
  expect_refused<ConfigError>(
      [](Spec& s) {
        s.bias = {BiasSpec::Kind::t5, 7, 128};
      },
      {"buckets", "7"});
  expect_refused<ConfigError>(
      [](Spec& s) {
        s.bias = {BiasSpec::Kind::t5, 32, 16};
      },
      {"max_distance", "16"});
  expect_refused<ConfigError>([](Spec& s) { s.dropout = 1.0; }, {"dropout"});
  const RoutingSpec routing{.clusters = 4};
  expect_refused<UnsupportedError>(
      [&](Spec& s) { s.routing = routing, s.head_mix.after = HeadMixSpec::Kind::full; },
      {"[attention spec] routing with head_mix is not defined (each head sees other pairs); remove "
       "one of them"});
  expect_refused<UnsupportedError>(
      [&](Spec& s) { s.routing = routing, s.streaming.recent = 8; },
      {"[attention spec] routing with streaming is not defined (two rules for distant pairs); "
       "remove one of them"});
  expect_refused<ConfigError>([](Spec& s) { s.routing.clusters = -1; }, {"routing.clusters"});
  expect_refused<ConfigError>([&](Spec& s) { s.routing = {.clusters = 2, .keep = 0}; },
                              {"routing.keep", "0"});
  expect_refused<UnsupportedError>([&](Spec& s) { s.routing = routing, s.mask.window = 4; },
                                   {"routing", "mask.window"});
  expect_refused<UnsupportedError>([&](Spec& s) { s.routing = routing, s.mask.causal = false; },
                                   {"routing", "causal"});
  expect_refused<UnsupportedError>(
      [&](Spec& s) { s.routing = routing, s.focus.gate = FocusSpec::Gate::hard; },
      {"routing", "focus"});
  expect_refused<UnsupportedError>(
      [&](Spec& s) { s.routing = routing, s.head_mix.after = HeadMixSpec::Kind::full; },
      {"routing", "head_mix"});
  expect_refused<UnsupportedError>([&](Spec& s) { s.routing = routing, s.blocks.size = 8; },
                                   {"routing", "blocks"});
  expect_refused<ConfigError>([](Spec& s) { s.blocks.pairs = {0, 0}; }, {"blocks.size"});
  expect_refused<ConfigError>(
      [](Spec& s) {
        s.blocks = {.size = 8, .pairs = {0, 0, 1}};
      },
      {"blocks.pairs", "3"});
  expect_refused<ConfigError>(
      [](Spec& s) {
        s.blocks = {.size = 8, .pairs = {0, -1}};
      },
      {"blocks.pairs", "-1"});
  for (const auto& [name, spec] : all_specs()) EXPECT_NO_THROW(spec.check()) << name;
}

TEST(AttentionInputs, ThatDoNotFitAreRefusedWithTheirShapes) {
  AttentionSpec spec = small_spec();
  const AttentionInputs in = random_inputs(spec, 2, 5);
  const auto call = [&](const at::Tensor& q, const at::Tensor& k,
                        const AttentionTensors& tensors = {},
                        const AttentionContext& context = {}) {
    return attention(spec, q, k, in.v, tensors, context);
  };
  EXPECT_ERROR(ShapeError, call(in.q.select(0, 0), in.k), "q", "4 dimensions", "[4, 5, 8]");
  EXPECT_ERROR(ShapeError, call(in.q, in.k.narrow(1, 0, 1)), "k", "[2, 2, 5, 8]", "[2, 1, 5, 8]");
  EXPECT_ERROR(ShapeError, call(in.q, in.k.to(at::kFloat)), "dtype", "k");
  EXPECT_ERROR(ShapeError, call(in.q, in.k, {.tau_bt = at::ones({2, 5})}), "tau", "constant");
  EXPECT_ERROR(ShapeError, call(in.q, in.k, {.sink_logit_h = at::ones({4})}), "sink_logit");
  EXPECT_ERROR(ShapeError, call(in.q, in.k, {.bias_table = at::ones({32, 4})}), "bias_table",
               "none");
  AttentionContext context;
  context.key_documents_bs = at::zeros({3, 5}, at::kLong);
  EXPECT_ERROR(ShapeError, call(in.q, in.k, {}, context), "key_documents", "[3, 5]");
  context.key_documents_bs = at::zeros({2, 6}, at::kLong);
  EXPECT_ERROR(ShapeError, call(in.q, in.k, {}, context), "key_documents", "5");
  spec.temperature.kind = TemperatureSpec::Kind::learned;
  EXPECT_ERROR(ShapeError, call(in.q, in.k), "tau", "learned");
}

// F-5, spec 10.1: t multiplies sqrt(d).
TEST(AttentionSpec, LogitScaleIsOneOverTRootD) {
  AttentionSpec spec = small_spec(1, 1, 64);
  spec.temperature.value = 0.4;
  EXPECT_DOUBLE_EQ(spec.logit_scale(), 1.0 / (0.4 * 8.0));
  spec.scale = 1.0 / 12.0;
  EXPECT_DOUBLE_EQ(spec.logit_scale(), 1.0 / (0.4 * 12.0));
}

TEST(Stages, StandInTheOrderOfTheLaw) {
  const std::vector<std::string> order{
      "keys",          "scale",   "soft_cap", "convolution_before", "mix_before",
      "gate_and_bias", "allowed", "softmax",  "convolution_after",  "mix_after",
      "values"};
  std::vector<std::string> names;
  for (const Stage& stage : attention_stages()) names.emplace_back(stage.name);
  EXPECT_EQ(names, order);
}

TEST(Stages, DescribeTheActiveSettingsInOrder) {
  AttentionSpec spec = small_spec();
  EXPECT_EQ(describe_pipeline(spec), "plain");
  spec.sink_logit = true, spec.mask.window = 128, spec.soft_cap = 50.0,
  spec.temperature.value = 0.4;
  spec.bias.kind = BiasSpec::Kind::alibi;
  EXPECT_EQ(describe_pipeline(spec),
            "temperature 0.4 > soft_cap 50 > alibi > window 128 > sink_logit");
}

TEST(Stages, TheDocumentationShowsThisTable) {
  EXPECT_NE(read_file(FOVEA_SOURCE_DIR "/docs/mechanisms/pipeline.md").find(stages_markdown()),
            std::string::npos)
      << "docs/mechanisms/pipeline.md must contain:\n"
      << stages_markdown();
}

TEST(Composition, TheDocumentationShowsThisTable) {
  EXPECT_NE(read_file(FOVEA_SOURCE_DIR "/docs/mechanisms/pipeline.md").find(composition_markdown()),
            std::string::npos)
      << "docs/mechanisms/pipeline.md must contain:\n"
      << composition_markdown();
}

TEST(Composition, PairsThatCombineRunAndTheOthersAreRefusedByName) {
  for (const MechanismSetting& a : mechanism_settings()) {
    for (const MechanismSetting& b : mechanism_settings()) {
      AttentionSpec spec = small_spec();
      a.apply(spec);
      b.apply(spec);
      const std::string why = why_not_together(a, b);
      if (why.empty()) {
        const AttentionInputs in = random_inputs(spec, 1, 9);
        const at::Tensor out =
            attention(spec, in.q, in.k, in.v, in.tensors, {}, Path::reference).out_bhte;
        EXPECT_TRUE(at::isfinite(out).all().item<bool>()) << a.name << " with " << b.name;
      } else if (why != kOneSetting) {
        EXPECT_THROW(spec.check(), UnsupportedError) << a.name << " with " << b.name;
      }
      EXPECT_EQ(why.empty(), why_not_together(b, a).empty()) << a.name << " with " << b.name;
    }
  }
}

}  // namespace
}  // namespace fovea::spec_test
