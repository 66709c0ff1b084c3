// SparQ against scalar loops: the choice of keys, the blend with the mean value, decoding from both
// layouts of the keys (spec 4.4, 13.11).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "fovea/attention/decode/cached_attention.h"
#include "fovea/attention/pipeline.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"
#include "tests/support/scalar_attention.h"
#include "tests/support/scalar_selectors.h"

namespace fovea::sparq_test {
namespace {

using namespace fovea::testing;

AttentionSpec sparq(int64_t components, int64_t keys, int64_t recent = -1) {
  AttentionSpec spec = small_spec(4, 2, 16);
  spec.value_dim = 8;
  spec.sparq = {.components = components, .keys = keys, .recent = recent};
  return spec;
}

std::vector<NamedSpec> sparq_specs() {
  std::vector<NamedSpec> all{{"default", sparq(5, 9)},
                             {"one component, one key", sparq(1, 1)},
                             {"no recent", sparq(4, 6, 0)},
                             {"recent alone", sparq(4, 6, 6)},
                             {"all components", sparq(16, 7)}};
  const auto add = [&](const char* name, const std::function<void(AttentionSpec&)>& change) {
    all.push_back({name, sparq(5, 9)});
    change(all.back().spec);
  };
  add("one key head", [](AttentionSpec& s) { s.kv_heads = 1; });
  add("as many key heads", [](AttentionSpec& s) { s.kv_heads = 4; });
  add("without mean", [](AttentionSpec& s) { s.sparq.reallocate = false; });
  add("scale and temperature", [](AttentionSpec& s) { s.scale = 0.4, s.temperature.value = 0.5; });
  add("learned temperature", [](AttentionSpec& s) {
    s.temperature.kind = TemperatureSpec::Kind::learned;
    s.temperature.form = TemperatureSpec::Form::token;
  });
  return all;
}

AttentionResult run(const AttentionSpec& spec, const AttentionInputs& in, Path path,
                    AttentionContext context = {}) {
  context.want_lse = true;
  return attention(spec, in.q, in.k, in.v, in.tensors, context, path);
}

TEST(Sparq, EqualsScalarLoopsForEverySetting) {
  for (const auto& [name, spec] : sparq_specs()) {
    for (const int64_t t : {1, 2, 11, 47}) {
      const AttentionInputs in = random_inputs(spec, 2, t);
      const SelectedTruth truth = ScalarSelector(spec, in).sparq();
      const AttentionResult got = run(spec, in, Path::reference);
      EXPECT_LT(relative_error(got.out_bhte, truth.out), 1e-12) << name << " " << t;
      EXPECT_LT(relative_error(got.lse_bht, truth.lse), 1e-12) << name << " " << t;
    }
  }
}

TEST(Sparq, EqualsScalarLoopsForQueriesAfterEarlierKeysAndForPackedDocuments) {
  for (const auto& [name, spec] : sparq_specs()) {
    const AttentionInputs later = random_inputs(spec, 1, 6, 40);
    EXPECT_LT(relative_error(run(spec, later, Path::reference).out_bhte,
                             ScalarSelector(spec, later).sparq().out),
              1e-12)
        << name;
    const AttentionInputs in = random_inputs(spec, 2, 50);
    EXPECT_LT(relative_error(run(spec, in, Path::reference, packed_context({17, 1, 32})).out_bhte,
                             ScalarSelector(spec, in, {17, 1, 32}).sparq().out),
              1e-12)
        << name;
  }
}

// The kernels, in blocks of rows: of what they are given in float32 or bfloat16 the float64 result.
TEST(Sparq, KernelsOverManyRowsEqualTheFloat64Reference) {
  for (const auto& [name, spec] : sparq_specs()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const double tolerance = dtype == at::kFloat ? 1e-5 : 1e-2;
      for (const auto& [t, s] : {std::pair{130, 130}, {19, 97}, {1, 1}, {2, 40}}) {
        const AttentionInputs in = random_inputs(spec, 2, t, s).to(dtype);
        const AttentionResult truth = run(spec, in.to(at::kDouble), Path::reference),
                              got = run(spec, in, Path::fused);
        EXPECT_EQ(got.path.text(), "grouped lists");
        EXPECT_LT(relative_error(got.out_bhte, truth.out_bhte), tolerance) << name << " " << s;
        EXPECT_LT(relative_error(got.lse_bht, truth.lse_bht), tolerance) << name << " " << s;
      }
    }
  }
}

TEST(Sparq, LongTextsInBlocksOfRowsEqualTheReference) {
  AttentionSpec spec = sparq(4, 24);
  spec.heads = 2, spec.kv_heads = 1;
  const AttentionInputs in = random_inputs(spec, 1, 2000).to(at::kFloat);  // several blocks
  const at::Tensor truth = run(spec, in.to(at::kDouble), Path::reference).out_bhte;
  EXPECT_LT(relative_error(run(spec, in, Path::fused).out_bhte, truth), 1e-5);
}

TEST(Sparq, MapsAreTheWeightsWithTheMeanInThem) {
  const AttentionSpec spec = sparq(5, 9);
  const AttentionInputs in = random_inputs(spec, 1, 30);
  const SelectedTruth truth = ScalarSelector(spec, in).sparq();
  const int64_t heads[] = {0, 3}, rows[] = {4, 28, 29};
  const at::Tensor maps = attention_rows(spec, in.q, in.k, in.tensors, {}, heads, rows);
  for (int64_t h = 0; h < 2; ++h)
    for (int64_t r = 0; r < 3; ++r)
      EXPECT_LT(relative_error(maps[0][h][r], truth.weights[0][heads[h]][rows[r]]), 1e-6);
  EXPECT_LT((maps.sum(-1) - 1.0).abs().max().item<double>(), 1e-6);
}

TEST(Sparq, GradientsEqualCentralDifferencesWithTheChoiceHeldFixed) {
  for (AttentionSpec spec : {sparq(5, 4), sparq(16, 3, 1)}) {
    spec.head_dim = 8, spec.value_dim = 3,
    spec.sparq.components = std::min<int64_t>(spec.sparq.components, 8);
    spec.temperature.kind = TemperatureSpec::Kind::learned;
    const AttentionInputs leaves = random_inputs(spec, 1, 9).with_gradient();
    expect_gradients(
        [&](const std::vector<at::Tensor>& x) {
          const AttentionResult r = attention(spec, x[0], x[1], x[2], {.tau_bt = x[3]},
                                              {.want_lse = true}, Path::reference);
          return (r.out_bhte * random_normal(r.out_bhte.sizes(), 5)).sum() + r.lse_bht.sum();
        },
        leaves.leaves(), "sparq", 1e-6, 1e-6);
  }
}

// 13.1: all components and all keys; the mean then has weight 0.
TEST(Sparq, WithAllComponentsAndKeysIsPlainAttention) {
  for (const bool reallocate : {false, true}) {
    AttentionSpec spec = sparq(16, 40), plain = spec;
    spec.sparq.reallocate = reallocate;
    plain.sparq = {};
    const AttentionInputs in = random_inputs(spec, 2, 37);
    const ScalarResult truth = scalar_attention(plain, in);
    EXPECT_LT(relative_error(run(spec, in, Path::reference).out_bhte, truth.out), 1e-12);
    EXPECT_LT(relative_error(run(spec, in.to(at::kFloat), Path::fused).out_bhte, truth.out), 1e-5);
  }
}

// 13.11: alpha in (0, 1]; the mean holds the row's own value; logits by components are divided by
// the root of their share of |q|.
TEST(Sparq, MovesTheWeightOfUnreadKeysToTheMeanOfAllValuesWithTheRowsOwn) {
  AttentionSpec spec = small_spec(1, 1, 2);
  spec.sparq = {.components = 1, .keys = 1, .recent = 0};
  AttentionInputs in;
  // Component 0 has 3/4 of |q|; the key chosen beside the last one is the first.
  in.q = at::tensor({0.0, 0.0, 0.0, 0.0, 3.0, 1.0}, at::kDouble).view({1, 1, 3, 2});
  in.k = at::tensor({1.0, 0.0, 0.0, 5.0, 0.5, 0.0}, at::kDouble).view({1, 1, 3, 2});
  in.v = at::tensor({6.0, 0.0, 0.0, 3.0, 0.0, 0.0}, at::kDouble).view({1, 1, 3, 2});
  const double unit = 3.0 / std::sqrt(2.0 * 0.75);
  const double parts[] = {std::exp(unit), 1.0, std::exp(0.5 * unit)};
  const double alpha = (parts[0] + parts[2]) / (parts[0] + parts[1] + parts[2]);
  const double first = 1.0 / (1.0 + std::exp(-1.5 / std::sqrt(2.0)));
  const at::Tensor out = run(spec, in, Path::reference).out_bhte[0][0][2];
  EXPECT_NEAR(out[0].item<double>(), alpha * first * 6.0 + (1.0 - alpha) * 2.0, 1e-12);
  EXPECT_NEAR(out[1].item<double>(), (1.0 - alpha) * 1.0, 1e-12);
  const at::Tensor all =
      ScalarSelector(sparq(3, 5), random_inputs(sparq(3, 5), 1, 60)).sparq().alpha;
  EXPECT_GT(all.min().item<double>(), 0.0);
  EXPECT_LE(all.max().item<double>(), 1.0 + 1e-12);
}

TEST(Sparq, LaterTokensChangeNoBitOfEarlierOutputs) {
  const AttentionSpec spec = sparq(5, 9);
  const int64_t t = 90;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& context : {AttentionContext{}, packed_context({50, 40})}) {
      const AttentionInputs in = random_inputs(spec, 1, t).to(dtype);
      for (const int64_t i : {0, 33, 60}) {
        AttentionInputs changed = in.to(dtype);
        for (const at::Tensor& x : {changed.q, changed.k, changed.v})
          x.narrow(2, i + 1, t - i - 1).mul_(-3.0).add_(0.7);
        for (const Path path : {Path::automatic, Path::reference}) {
          const at::Tensor before = run(spec, in, path, context).out_bhte,
                           after = run(spec, changed, path, context).out_bhte;
          EXPECT_TRUE(before.narrow(2, 0, i + 1).equal(after.narrow(2, 0, i + 1))) << i;
          EXPECT_FALSE(before.equal(after));
        }
      }
    }
  }
}

TEST(Sparq, ADocumentNoticesNothingOfAnother) {
  const AttentionSpec spec = sparq(5, 9);
  const AttentionInputs in = random_inputs(spec, 1, 70);
  AttentionInputs changed = in.to(at::kDouble);
  for (const at::Tensor& x : {changed.q, changed.k, changed.v}) x.narrow(2, 0, 40).mul_(-5.3);
  const auto second = [&](const AttentionInputs& x) {
    return run(spec, x, Path::automatic, packed_context({40, 30})).out_bhte.narrow(2, 40, 30);
  };
  EXPECT_TRUE(second(in).equal(second(changed)));
  EXPECT_LT(relative_error(second(in), run(spec, in.tokens(40, 30), Path::reference).out_bhte),
            1e-12);
}

TEST(Sparq, RowsWithoutKeysAreZero) {
  const AttentionSpec spec = sparq(5, 9);
  const AttentionInputs in = random_inputs(spec, 1, 3);
  AttentionContext context;
  context.key_documents_bs = at::tensor({0, 0, 1}, at::kLong);
  context.query_documents_bt = at::tensor({7, 0, 1}, at::kLong);
  context.key_positions_bs = context.query_positions_bt = at::tensor({0, 1, 0}, at::kLong);
  const AttentionResult r = run(spec, in, Path::automatic, context);
  EXPECT_TRUE(r.out_bhte.select(2, 0).eq(0.0).all().item<bool>());
  EXPECT_TRUE(at::isneginf(r.lse_bht.select(2, 0)).all().item<bool>());
  EXPECT_TRUE(r.out_bhte.isfinite().all().item<bool>());
  const AttentionInputs none = random_inputs(spec, 1, 2, 0);
  EXPECT_TRUE(run(spec, none, Path::automatic).out_bhte.eq(0.0).all().item<bool>());
  EXPECT_EQ(run(spec, random_inputs(spec, 1, 0, 5), Path::automatic).out_bhte.numel(), 0);
}

// 13.4: a prompt in chunks, then token by token.
TEST(Sparq, DecodingEqualsTheWholeForEverySplit) {
  for (const auto& [name, spec] : sparq_specs()) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      const double tolerance = dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 1e-5 : 1e-2;
      const AttentionInputs in = random_inputs(spec, 2, 80).to(dtype);
      const at::Tensor whole = run(spec, in.to(at::kDouble), Path::reference).out_bhte;
      AttentionCache cache(cache_streams(spec, dtype), 2, 100);
      const auto step = [&](AttentionCache& at, int64_t begin, int64_t n) {
        const AttentionInputs some = in.tokens(begin, n);
        const AttentionResult r = cached_attention(spec, at, some.q, some.k, some.v, some.tensors);
        EXPECT_LT(relative_error(r.out_bhte, whole.narrow(2, begin, n)), tolerance)
            << name << " at " << begin;
        return r.path.plan_text();
      };
      step(cache, 0, 23);
      step(cache, 23, 17);
      for (int64_t i = 40; i < 60; ++i)
        EXPECT_EQ(step(cache, i, 1), dtype == at::kDouble ? "reference dense" : "grouped scan");
      AttentionCache fork = cache.fork();
      step(fork, 60, 20);
      cache.truncate(45);
      step(cache, 45, 1);
      step(cache, 46, 1);
    }
  }
}

TEST(Sparq, SequencesOfUnequalLengthsDecodeAsAlone) {
  const AttentionSpec spec = sparq(5, 9);
  const AttentionInputs in = random_inputs(spec, 2, 60).to(at::kFloat);
  const at::Tensor whole = run(spec, in.to(at::kDouble), Path::reference).out_bhte;
  AttentionCache cache(cache_streams(spec, at::kFloat), 2, 100);
  const AttentionInputs prompt = in.tokens(0, 50);
  (void)cached_attention(spec, cache, prompt.q, prompt.k, prompt.v);
  const int64_t lengths[] = {50, 31};
  cache.truncate(lengths);
  const auto token = [&](const at::Tensor& x) {
    return at::cat({x.narrow(0, 0, 1).narrow(2, 50, 1), x.narrow(0, 1, 1).narrow(2, 31, 1)});
  };
  const AttentionResult r = cached_attention(spec, cache, token(in.q), token(in.k), token(in.v));
  EXPECT_LT(relative_error(r.out_bhte, token(whole)), 1e-5);
}

TEST(Sparq, KeepsItsKeysTwiceAndReadsAsManyAsItsBudget) {
  const AttentionSpec spec = sparq(4, 9);
  AttentionSpec plain = spec;
  plain.sparq = {};
  const AttentionCache cache(cache_streams(spec, at::kFloat), 1, 64),
      without(cache_streams(plain, at::kFloat), 1, 64);
  EXPECT_EQ(cache.bytes() - without.bytes(), 64 * 2 * (16 + 8) * 4);  // keys, sums of values
  AttentionCache used(cache_streams(spec, at::kFloat), 1, 64);
  const AttentionInputs in = random_inputs(spec, 1, 50).to(at::kFloat);
  const AttentionInputs first = in.tokens(0, 49), last = in.tokens(49, 1);
  (void)cached_attention(spec, used, first.q, first.k, first.v);
  const AttentionResult r = cached_attention(spec, used, last.q, last.k, last.v);
  EXPECT_EQ(r.path.reason.text(), "one query: 10 of 50 keys are read");
}

TEST(Sparq, ImpossibleValuesAreRefusedByName) {
  const auto check = [](const std::function<void(AttentionSpec&)>& change) {
    AttentionSpec spec = sparq(5, 9);
    change(spec);
    spec.check();
  };
  EXPECT_ERROR(ConfigError, check([](AttentionSpec& s) { s.sparq.components = 17; }),
               "sparq.components", "16", "17");
  EXPECT_ERROR(ConfigError, check([](AttentionSpec& s) { s.sparq.components = -1; }),
               "sparq.components");
  EXPECT_ERROR(ConfigError, check([](AttentionSpec& s) { s.sparq.keys = 0; }), "sparq.keys");
  EXPECT_ERROR(ConfigError, check([](AttentionSpec& s) { s.sparq.recent = 10; }), "sparq.recent",
               "10", "9");
  EXPECT_ERROR(ConfigError, check([](AttentionSpec& s) { s.sparq.recent = -2; }), "sparq.recent");
}

TEST(Selectors, MeetNoSettingThatTheirChoiceDoesNotKnow) {
  const std::vector<std::pair<const char*, std::function<void(AttentionSpec&)>>> others{
      {"mask.window", [](AttentionSpec& s) { s.mask.window = 4; }},
      {"causal", [](AttentionSpec& s) { s.mask.causal = false; }},
      {"focus", [](AttentionSpec& s) { s.focus.gate = FocusSpec::Gate::hard; }},
      {"routing", [](AttentionSpec& s) { s.routing.clusters = 2; }},
      {"blocks",
       [](AttentionSpec& s) {
         s.blocks = {.size = 4, .pairs = {0, 0}};
       }},
      {"longformer", [](AttentionSpec& s) { s.longformer.window = 4; }},
      {"streaming", [](AttentionSpec& s) { s.streaming.recent = 8; }},
      {"performer", [](AttentionSpec& s) { s.performer.features = 8; }},
      {"differential", [](AttentionSpec& s) { s.differential = true; }},
      {"multi_token",
       [](AttentionSpec& s) {
         s.multi_token.before = {2, 3};
       }},
      {"head_mix", [](AttentionSpec& s) { s.head_mix.before = HeadMixSpec::Kind::full; }},
      {"soft_cap", [](AttentionSpec& s) { s.soft_cap = 3.0; }},
      {"bias", [](AttentionSpec& s) { s.bias.kind = BiasSpec::Kind::alibi; }},
      {"sink_logit", [](AttentionSpec& s) { s.sink_logit = true; }}};
  for (const bool pig : {false, true}) {
    for (const auto& [name, change] : others) {
      AttentionSpec spec = small_spec(4, 2, 16);
      (pig ? spec.magic_pig.bits : spec.sparq.components) = 4;
      EXPECT_NO_THROW(spec.check());
      change(spec);
      EXPECT_ERROR(UnsupportedError, spec.check(), name);
    }
  }
  AttentionSpec both = sparq(4, 9);
  both.magic_pig.bits = 4;
  EXPECT_ERROR(UnsupportedError, both.check(), "sparq", "magic_pig");
}

}  // namespace
}  // namespace fovea::sparq_test
