// A stage that a program registers: it acts on every path, learns, decodes, and is refused where it
// has no meaning.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/own_stage.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "fovea/attention/decode/cached_attention.h"
#include "fovea/attention/mechanisms/dropout.h"
#include "fovea/attention/mechanisms/talking_heads.h"
#include "fovea/attention/stage_rows.h"
#include "fovea/attention/stages.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"

namespace fovea::own_stage_test {
namespace {

using namespace fovea::testing;

// s - w_h values[0] (i - j): ALiBi with learned slopes.
const bool kRegistered = [] {
  register_own_stage(
      {.name = "test-slopes",
       .apply =
           [](const at::Tensor& logits, const OwnStageCall& call) {
             const at::Tensor distance =
                 call.distance_bts.to(logits.scalar_type()).unsqueeze(1) * call.spec.own.values[0];
             return logits - call.weight.view({1, -1, 1, 1}) * distance;
           },
       .weight_shape = [](const AttentionSpec& spec) { return std::vector{spec.heads}; },
       .weight_start = 0.25,
       .check =
           [](const AttentionSpec& spec) {
             require<ConfigError>(spec.own.values.size() == 1, "test-slopes",
                                  "own.values needs one number; got {}", spec.own.values.size());
           }});
  return true;
}();

AttentionSpec own_spec() {
  return {.heads = 4, .kv_heads = 2, .head_dim = 8, .own = {"test-slopes", {1.0}}};
}

AttentionInputs own_inputs(int64_t b, int64_t t, uint64_t seed = 3) {
  AttentionInputs in{random_normal({b, 4, t, 8}, seed), random_normal({b, 2, t, 8}, seed + 1),
                     random_normal({b, 2, t, 8}, seed + 2)};
  in.tensors.own = random_normal({4}, seed + 3).abs();
  return in;
}

TEST(OwnStage, ActsInStageFiveOnEveryPath) {
  AttentionSpec alibi = own_spec();
  alibi.own = {};
  alibi.bias.kind = BiasSpec::Kind::alibi;
  AttentionInputs in = own_inputs(2, 19);
  in.tensors.own = at::tensor({0.25, 0.0625, 0.015625, 0.00390625}, at::kDouble);  // slopes of 4
  const at::Tensor expected = attention(alibi, in.q, in.k, in.v).out_bhte;
  for (const Path path : {Path::automatic, Path::reference}) {
    const AttentionResult result = attention(own_spec(), in.q, in.k, in.v, in.tensors, {}, path);
    EXPECT_LT((result.out_bhte - expected).abs().max().item<double>(), 1e-12);
    EXPECT_EQ(result.path.name, PathName::reference);
  }
  const AttentionInputs single = in.to(at::kFloat);
  EXPECT_EQ(attention(own_spec(), single.q, single.k, single.v, single.tensors).path.name,
            PathName::reference);
  EXPECT_ERROR(UnsupportedError,
               attention(own_spec(), single.q, single.k, single.v, single.tensors, {}, Path::fused),
               "test-slopes");
}

TEST(OwnStage, GradientsReachItsWeightInBlocksToo) {
  const AttentionInputs in = own_inputs(1, 5).with_gradient();
  expect_gradients(
      [&](const std::vector<at::Tensor>& x) {
        AttentionTensors tensors;
        tensors.own = x[3];
        return attention(own_spec(), x[0], x[1], x[2], tensors).out_bhte.square().sum();
      },
      in.leaves(), "own stage", 1e-5, 1e-6);
}

TEST(OwnStage, ComposesWithTheOthersInTheLawsOrder) {
  AttentionSpec spec = own_spec();
  spec.soft_cap = 5.0;
  spec.bias.kind = BiasSpec::Kind::alibi;
  spec.mask.window = 4;
  EXPECT_EQ(describe_pipeline(spec), "soft_cap 5 > own test-slopes > alibi > window 4");
}

// What mechanisms of the library do in five stages, as one registration.
const bool kAnyStageRegistered = [] {
  register_own_stage(
      {.name = "test-any-stage",
       .formulas = {{StageId::soft_cap,
                     [](const at::Tensor& x, const OwnStageCall&) {
                       return at::tanh(x / 5.0) * 5.0;
                     }},
                    {StageId::mix_before,
                     [](const at::Tensor& x, const OwnStageCall& call) {
                       return mix_logits(x, call.weight.unsqueeze(0));
                     }},
                    {StageId::mix_after,
                     [](const at::Tensor& x, const OwnStageCall& call) {
                       return mix_weights(x, call.weight.unsqueeze(0));
                     }},
                    {StageId::values,
                     [](const at::Tensor& x, const OwnStageCall& call) {
                       const AttentionSpec dropping{.heads = 4, .dropout = 0.25};
                       return x * dropout_factors(dropping, call.rows.call.context,
                                                  call.rows.first_row(), call.rows.keys.begin, x);
                     }}},
       .visible = [](const at::Tensor&,
                     const OwnStageCall& call) { return call.distance_bts.lt(4).unsqueeze(1); },
       .weight_shape =
           [](const AttentionSpec& spec) {
             return std::vector{spec.heads, spec.heads};
           }});
  return true;
}();

TEST(OwnStage, ActsInEveryStageAsTheMechanismsOfTheLibraryDo) {
  EXPECT_TRUE(kAnyStageRegistered);
  AttentionSpec own{.heads = 4, .kv_heads = 2, .head_dim = 8, .own = {"test-any-stage", {}}};
  AttentionSpec library{.heads = 4, .kv_heads = 2, .head_dim = 8};
  library.soft_cap = 5.0;
  library.head_mix = {HeadMixSpec::Kind::full, HeadMixSpec::Kind::full, 0};
  library.mask.window = 4;
  library.dropout = 0.25;
  EXPECT_EQ(
      describe_pipeline(own),
      "own test-any-stage > own test-any-stage > own test-any-stage > own test-any-stage > own "
      "test-any-stage");
  AttentionInputs in = own_inputs(2, 19).to(at::kFloat);
  in.tensors.own = random_normal({4, 4}, 8).to(at::kFloat);
  AttentionTensors mixes;
  mixes.mix_before_noi = mixes.mix_after_nio = in.tensors.own.unsqueeze(0);
  AttentionContext context;
  context.training = true;
  context.dropout_seed = 7;
  const auto run = [&](const AttentionSpec& spec, const AttentionTensors& tensors, Path path) {
    return attention(spec, in.q, in.k, in.v, tensors, context, path).out_bhte;
  };
  const at::Tensor expected = run(library, mixes, Path::reference);
  for (const Path path : {Path::automatic, Path::reference})
    EXPECT_TRUE(at::equal(run(own, in.tensors, path), expected)) << enum_name(path);
}

TEST(OwnStage, DecodesToTheFullForwardPass) {
  AttentionSpec spec = own_spec();
  spec.multi_token.before = {2, 3};
  AttentionInputs in = own_inputs(1, 9);
  in.tensors.kernel_before_hqk = random_normal({4, 2, 3}, 11);
  const at::Tensor full = attention(spec, in.q, in.k, in.v, in.tensors).out_bhte;
  AttentionCache cache(cache_streams(spec, at::kDouble), 1, 9, at::kCPU);
  for (int64_t t = 0; t < 9; ++t) {
    const AttentionInputs one = in.tokens(t, 1);
    const at::Tensor out =
        cached_attention(spec, cache, one.q, one.k, one.v, in.tensors, Path::automatic).out_bhte;
    EXPECT_LT((out - full.narrow(2, t, 1)).abs().max().item<double>(), 1e-12) << t;
  }
}

TEST(OwnStage, UnknownNamesWrongValuesAndShapesAreRefusedByName) {
  AttentionSpec spec = own_spec();
  spec.own.name = "test-slope";
  EXPECT_ERROR(ConfigError, spec.check(), "test-slope", "did you mean", "test-slopes");
  spec.own = {"test-slopes", {1.0, 2.0}};
  EXPECT_ERROR(ConfigError, spec.check(), "own.values", "2");
  spec.own = {"", {1.0}};
  EXPECT_ERROR(ConfigError, spec.check(), "own.values", "own.name");
  spec = own_spec();
  spec.differential = true;
  EXPECT_ERROR(UnsupportedError, spec.check(), "differential", "own.name");
  AttentionInputs in = own_inputs(1, 5);
  in.tensors.own = at::ones({3}, at::kDouble);
  EXPECT_ERROR(ShapeError, attention(own_spec(), in.q, in.k, in.v, in.tensors), "own", "[4]");
  in.tensors.own = at::Tensor();
  EXPECT_ERROR(ShapeError, attention(own_spec(), in.q, in.k, in.v, in.tensors), "own");
}

TEST(OwnStage, RegistersOnceAndWithAFunction) {
  const auto same = [](const at::Tensor& x, const OwnStageCall&) { return x; };
  EXPECT_ERROR(ConfigError, register_own_stage({.name = "test-slopes", .apply = same}),
               "registered already");
  EXPECT_ERROR(ConfigError, register_own_stage({.name = "", .apply = same}), "name");
  EXPECT_ERROR(ConfigError, register_own_stage({.name = "test-empty"}), "apply");
  EXPECT_ERROR(ConfigError,
               register_own_stage({.name = "test-keys", .formulas = {{StageId::keys, same}}}),
               "test-keys", "keys");
  EXPECT_ERROR(
      ConfigError,
      register_own_stage(
          {.name = "test-twice", .apply = same, .formulas = {{StageId::gate_and_bias, same}}}),
      "test-twice", "gate_and_bias");
  register_own_stage({.name = "test-short", .apply = [](const at::Tensor& x, const OwnStageCall&) {
                        return x.narrow(3, 0, 1);
                      }});
  AttentionSpec spec = own_spec();
  spec.own = {"test-short", {}};
  const AttentionInputs in = own_inputs(1, 5);
  EXPECT_ERROR(ShapeError, attention(spec, in.q, in.k, in.v), "test-short", "shape");
  EXPECT_TRUE(kRegistered);
}

}  // namespace
}  // namespace fovea::own_stage_test
