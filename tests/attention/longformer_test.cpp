// Longformer (spec 4.1): slices as the truth of windows, the mask that it equals where it can,
// kernels with gradients, global rows, decoding from a rolling cache, refusals. Scalar loops,
// causality, packing and gradients of the reference run with those of every spec (all_specs()).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/specs/longformer.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "fovea/attention/decode/cached_attention.h"
#include "fovea/attention/mechanisms/longformer_rule.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"
#include "tests/support/scalar_attention.h"

namespace fovea::longformer_test {
namespace {

using namespace fovea::testing;

AttentionSpec longformer(LongformerSpec rule) {
  AttentionSpec spec = small_spec(4, 2, 16);
  spec.value_dim = 24;
  spec.longformer = std::move(rule);
  return spec;
}

// What the mask cannot say: dilation by head, by key head, by single heads of one; globals
// elsewhere; own projections.
std::vector<NamedSpec> richer() {
  std::vector<NamedSpec> all;
  const auto add = [&](const char* name, LongformerSpec rule) {
    all.push_back({name, longformer(std::move(rule))});
  };
  add("dilated", {.window = 9, .dilation = {3}});
  add("dilated by key head", {.window = 9, .dilation = {1, 1, 4, 4}, .globals = 2});
  add("dilated by query head", {.window = 9, .dilation = {2, 1, 5, 2}, .globals = 3});
  add("globals", {.window = 9, .globals = 1, .global_positions = {40, 17, 5}});
  add("dilated globals", {.window = 5, .dilation = {1, 2, 2, 1}, .global_positions = {33}});
  add("projections", {.window = 9, .globals = 2, .global_positions = {31}, .projections = true});
  add("dilated projections", {.window = 3, .dilation = {2}, .globals = 4, .projections = true});
  return all;
}

struct Numbers {
  at::Tensor out, lse;
  std::vector<at::Tensor> grads;
  PathTaken path;
};

Numbers run(const AttentionSpec& spec, const AttentionInputs& leaves, AttentionContext context,
            Path path) {
  context.want_lse = true;
  const AttentionInputs in = leaves.with_gradient();
  const AttentionResult r = attention(spec, in.q, in.k, in.v, in.tensors, context, path);
  const at::ScalarType wide = in.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor sum =
      (r.out_bhte.to(wide) * random_normal(r.out_bhte.sizes(), 77).to(wide)).sum() +
      r.lse_bht.sum();
  return {r.out_bhte.detach(), r.lse_bht.detach(), gradients(sum, in.leaves()), r.path};
}

// A window with a dilation of d is plain attention over the keys i, i - d, ..., i - w d.
TEST(Longformer, EqualsSlicingTheKeysOfEveryHead) {
  const AttentionSpec spec = longformer({.window = 3, .dilation = {1, 2, 1, 5}});
  const AttentionInputs in = random_inputs(spec, 2, 30);
  const at::Tensor out = reference_attention(spec, in.q, in.k, in.v).out_bhte;
  AttentionSpec plain = small_spec(1, 1, 16);
  plain.value_dim = 24;
  for (int64_t h = 0; h < 4; ++h) {
    for (int64_t i = 0; i < 30; ++i) {
      std::vector<int64_t> keys;
      for (int64_t j = i, n = 0; j >= 0 && n <= 3; j -= spec.longformer.dilation[h], ++n)
        keys.insert(keys.begin(), j);
      const auto pick = [&](const at::Tensor& x) {
        return x.narrow(1, h / 2, 1).index_select(2, at::tensor(keys));
      };
      const at::Tensor row =
          reference_attention(plain, in.q.narrow(1, h, 1).narrow(2, i, 1), pick(in.k), pick(in.v))
              .out_bhte;
      EXPECT_LT(relative_error(out.narrow(1, h, 1).narrow(2, i, 1), row), 1e-13) << h << " " << i;
    }
  }
}

// 13.1.
TEST(Longformer, AWindowOfTheWholeTextIsPlainAttention) {
  const AttentionSpec spec = longformer({.window = 25, .globals = 3});
  AttentionSpec plain = spec;
  plain.longformer = {};
  const AttentionInputs in = random_inputs(spec, 2, 25);
  for (const Path path : {Path::automatic, Path::reference})
    EXPECT_LT(relative_error(attention(spec, in.q, in.k, in.v, {}, {}, path).out_bhte,
                             attention(plain, in.q, in.k, in.v, {}, {}, path).out_bhte),
              1e-13);
}

// Without dilation, later globals and projections: the mask's kernels, bit for bit, on every path.
TEST(Longformer, IsTheMaskOfAWindowAndSinksBitForBit) {
  const AttentionSpec spec =
      longformer({.window = 11, .dilation = {1}, .globals = 1, .global_positions = {1, 2}});
  AttentionSpec masked = spec;
  masked.longformer = {};
  masked.mask = {.window = 12, .sinks = 3};
  for (const AttentionContext& context : {AttentionContext{}, packed_context({70, 1, 29})}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const AttentionInputs in = random_inputs(spec, 2, 100).to(dtype);
      for (const Path path : {Path::fused, Path::automatic}) {
        const Numbers got = run(spec, in, context, path), mask = run(masked, in, context, path);
        EXPECT_EQ(got.path.name, PathName::fused);
        EXPECT_EQ(got.path.text(), mask.path.text());
        EXPECT_TRUE(got.out.equal(mask.out));
        EXPECT_TRUE(got.lse.equal(mask.lse));
        for (size_t n = 0; n < got.grads.size(); ++n)
          EXPECT_TRUE(got.grads[n].equal(mask.grads[n])) << n;
      }
    }
  }
  const AttentionInputs in = random_inputs(spec, 2, 100);
  EXPECT_LT(relative_error(run(spec, in, {}, Path::reference).out,
                           run(masked, in, {}, Path::reference).out),
            1e-13);
}

TEST(Longformer, KernelsEqualTheFloat64ReferenceWithTheirGradients) {
  AttentionContext by_row = packed_context({60, 1, 39});
  by_row.query_documents_bt = by_row.key_documents_bs =
      at::cat({by_row.key_documents_bs, at::zeros({1, 100}, at::kLong)});
  by_row.query_positions_bt = by_row.key_positions_bs =
      at::cat({by_row.key_positions_bs, at::arange(100).unsqueeze(0)});
  for (auto [name, spec] : richer()) {
    for (const bool settings : {false, true}) {
      if (settings) {
        spec.soft_cap = 4.0, spec.sink_logit = true;
        spec.temperature.kind = TemperatureSpec::Kind::learned;
      }
      for (const AttentionContext& context :
           {AttentionContext{}, packed_context({60, 1, 39}), by_row}) {
        const AttentionInputs in = random_inputs(spec, 2, 100);
        const Numbers truth = run(spec, in, context, Path::reference);
        const Numbers got = run(spec, in.to(at::kFloat), context, Path::fused);
        EXPECT_EQ(got.path.text(), "fused window") << name;
        EXPECT_LT(relative_error(got.out, truth.out), 1e-5) << name;
        EXPECT_LT(relative_error(got.lse, truth.lse), 1e-5) << name;
        ASSERT_EQ(got.grads.size(), truth.grads.size());
        for (size_t n = 0; n < got.grads.size(); ++n)
          EXPECT_LT(relative_error(got.grads[n], truth.grads[n]), 3e-5) << name << " " << n;
        const AttentionInputs half = in.to(at::kBFloat16);
        const Numbers coarse = run(spec, half, context, Path::fused),
                      fine = run(spec, half.to(at::kDouble), context, Path::reference);
        EXPECT_LT(relative_error(coarse.out, fine.out), 1e-2) << name;
        for (size_t n = 0; n < fine.grads.size(); ++n)
          EXPECT_LT(relative_error(coarse.grads[n], fine.grads[n]), 2e-2) << name << " " << n;
      }
    }
  }
}

// Texts so long that kernels keep neighbouring tokens in rings, where few keys join block by block.
TEST(Longformer, LongTextsEqualTheReferenceWithTheirGradients) {
  AttentionSpec dilated = longformer({.window = 9, .dilation = {2, 2, 1, 1}, .globals = 3});
  AttentionSpec late = longformer({.window = 20});
  late.longformer.global_positions = {4, 5, 333, 700};
  late.soft_cap = 4.0, late.sink_logit = true;
  late.temperature.kind = TemperatureSpec::Kind::learned;
  for (const AttentionSpec& spec : {dilated, late}) {
    const AttentionInputs in = random_inputs(spec, 2, 1100);
    const Numbers truth = run(spec, in, {}, Path::reference);
    const Numbers got = run(spec, in.to(at::kFloat), {}, Path::fused);
    EXPECT_EQ(got.path.text(), "fused window");
    EXPECT_LT(relative_error(got.out, truth.out), 1e-5);
    EXPECT_LT(relative_error(got.lse, truth.lse), 1e-5);
    for (size_t n = 0; n < got.grads.size(); ++n)
      EXPECT_LT(relative_error(got.grads[n], truth.grads[n]), 3e-5) << n;
  }
}

// Residue classes of one size, of two, and more classes than tokens; globals in and beyond the
// text.
TEST(Longformer, DilatedTextsOfEveryLengthEqualTheReference) {
  for (const int64_t globals : {0, 2, 5}) {
    const AttentionSpec spec =
        longformer({.window = 2, .dilation = {5, 5, 1, 3}, .globals = globals});
    for (const int64_t tokens : {2, 3, 4, 5, 6, 10, 15, 17, 30, 41, 64}) {
      const AttentionInputs in = random_inputs(spec, 2, tokens);
      const Numbers truth = run(spec, in, {}, Path::reference);
      const Numbers got = run(spec, in.to(at::kFloat), {}, Path::fused);
      EXPECT_EQ(got.path.text(), "fused window");
      EXPECT_LT(relative_error(got.out, truth.out), 1e-5) << globals << " " << tokens;
      EXPECT_LT(relative_error(got.lse, truth.lse), 1e-5) << globals << " " << tokens;
      for (size_t n = 0; n < got.grads.size(); ++n)
        EXPECT_LT(relative_error(got.grads[n], truth.grads[n]), 3e-5)
            << globals << " " << tokens << " " << n;
    }
  }
}

// A position bias counts true distances: without dilation the kernels do, with it the reference.
TEST(Longformer, PositionBiasesCountTheDistancesOfTheText) {
  AttentionSpec spec = longformer({.window = 6, .global_positions = {20}});
  for (const BiasSpec& bias :
       {BiasSpec{.kind = BiasSpec::Kind::alibi}, BiasSpec{BiasSpec::Kind::t5, 8, 16}}) {
    spec.bias = bias;
    const AttentionInputs in = random_inputs(spec, 1, 60);
    const Numbers got = run(spec, in.to(at::kFloat), {}, Path::fused);
    EXPECT_LT(relative_error(got.out, scalar_attention(spec, in).out), 1e-5);
  }
  spec.longformer.dilation = {2};
  const AttentionInputs in = random_inputs(spec, 1, 60).to(at::kFloat);
  const PathTaken path = attention(spec, in.q, in.k, in.v, in.tensors).path;
  EXPECT_EQ(path.name, PathName::reference);
  EXPECT_NE(path.reason.text().find("position bias"), std::string::npos);
}

TEST(Longformer, LaterTokensChangeNoBitOnTheKernels) {
  for (const auto& [name, spec] : richer()) {
    for (const AttentionContext& context : {AttentionContext{}, packed_context({40, 30})}) {
      const AttentionInputs in = random_inputs(spec, 1, 70).to(at::kFloat);
      for (const int64_t i : {0, 33, 50}) {
        AttentionInputs changed = in.to(at::kFloat);
        for (const at::Tensor& x : {changed.q, changed.k, changed.v})
          x.narrow(2, i + 1, 70 - i - 1).mul_(-3.0).add_(0.7);
        const auto out = [&](const AttentionInputs& x) {
          return attention(spec, x.q, x.k, x.v, x.tensors, context, Path::fused).out_bhte;
        };
        const at::Tensor before = out(in), after = out(changed);
        EXPECT_TRUE(before.narrow(2, 0, i + 1).equal(after.narrow(2, 0, i + 1))) << name << i;
        EXPECT_FALSE(before.equal(after)) << name;
      }
    }
  }
}

// Copies of the layer's own projections change nothing.
TEST(Longformer, ProjectionsThatAreCopiesAreNeutral) {
  const AttentionSpec spec =
      longformer({.window = 4, .globals = 2, .global_positions = {12}, .projections = true});
  AttentionSpec without = spec;
  without.longformer.projections = false;
  AttentionInputs in = random_inputs(without, 1, 30);
  AttentionTensors copies;
  copies.global_q_bhtd = in.q, copies.global_k_bgsd = in.k, copies.global_v_bgse = in.v;
  EXPECT_LT(relative_error(reference_attention(spec, in.q, in.k, in.v, copies).out_bhte,
                           reference_attention(without, in.q, in.k, in.v).out_bhte),
            1e-14);
}

// Only rows of global queries read global projections.
TEST(Longformer, ProjectionsReachGlobalRowsAlone) {
  const AttentionSpec spec =
      longformer({.window = 4, .globals = 1, .global_positions = {12}, .projections = true});
  const AttentionInputs in = random_inputs(spec, 1, 30);
  AttentionInputs other = in;
  for (at::Tensor* x :
       {&other.tensors.global_q_bhtd, &other.tensors.global_k_bgsd, &other.tensors.global_v_bgse})
    *x = *x * -2.0 + 0.3;
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const auto out = [&](const AttentionInputs& given) {
      const AttentionInputs x = given.to(dtype);
      return attention(spec, x.q, x.k, x.v, x.tensors).out_bhte;
    };
    const at::Tensor changed = out(in).ne(out(other)).any(3).any(1).squeeze(0);
    for (int64_t i = 0; i < 30; ++i) EXPECT_EQ(changed[i].item<bool>(), i == 0 || i == 12) << i;
  }
}

// Chunks, then token by token: the rows of the whole, from as few keys as the rule needs.
TEST(Longformer, ChunksAndDecodingEqualTheWhole) {
  std::vector<NamedSpec> all = richer();
  all.push_back({"mask", longformer({.window = 9, .globals = 2})});
  for (const auto& [name, spec] : all) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      const AttentionInputs in = random_inputs(spec, 2, 150).to(dtype);
      const at::Tensor whole = reference_attention(spec, in.q, in.k, in.v, in.tensors).out_bhte;
      AttentionCache cache(cache_streams(spec, dtype), 2, 200);
      const auto step = [&](AttentionCache& at, int64_t begin, int64_t n) {
        const AttentionInputs some = in.tokens(begin, n);
        const AttentionResult result =
            cached_attention(spec, at, some.q, some.k, some.v, some.tensors);
        EXPECT_LT(relative_error(result.out_bhte, whole.narrow(2, begin, n)),
                  dtype == at::kDouble ? 1e-12 : 1e-5)
            << name << " at " << begin;
        EXPECT_EQ(is_ours(result.path.inner), dtype == at::kFloat) << name;
      };
      step(cache, 0, 3);
      step(cache, 3, 50);
      step(cache, 53, 27);
      for (int64_t i = 80; i < 110; ++i) step(cache, i, 1);
      AttentionCache fork = cache.fork();
      step(fork, 110, 40);
      cache.truncate(108);
      step(cache, 108, 1);
    }
  }
}

TEST(Longformer, TheCacheRollsUnlessAGlobalQueryIsStillToCome) {
  const auto kept = [](LongformerSpec rule) {
    const StreamSpec keys = cache_streams(longformer(std::move(rule)), at::kFloat)[0];
    return std::pair(keys.keep_first, keys.keep_last);
  };
  EXPECT_EQ(kept({.window = 9, .globals = 2}), std::pair(int64_t{2}, int64_t{10}));
  EXPECT_EQ(kept({.window = 9, .dilation = {1, 1, 4, 2}, .globals = 50}),
            std::pair(int64_t{50}, int64_t{37}));
  EXPECT_EQ(kept({.window = 9, .global_positions = {7}}), std::pair(int64_t{8}, int64_t{10}));
  EXPECT_EQ(kept({.window = 9, .global_positions = {40}}), std::pair(int64_t{0}, int64_t{0}));
  const AttentionSpec spec = longformer({.window = 4, .dilation = {3}, .globals = 2});
  const AttentionInputs in = random_inputs(spec, 1, 100).to(at::kFloat);
  AttentionCache cache(cache_streams(spec, at::kFloat), 1, 100);
  const int64_t bytes = cache.bytes();
  for (int64_t i = 0; i < 100; ++i) {
    const AttentionInputs one = in.tokens(i, 1);
    cached_attention(spec, cache, one.q, one.k, one.v);
    EXPECT_LE(cache.rows("keys").size(1), 2 + 13);
  }
  EXPECT_EQ(cache.bytes(), bytes);
}

TEST(Longformer, ImpossibleValuesAreRefusedByName) {
  const auto check = [](LongformerSpec rule) { longformer(std::move(rule)).check(); };
  EXPECT_ERROR(ConfigError, check({.globals = 2}), "longformer.window");
  EXPECT_ERROR(ConfigError, check({.window = -3}), "longformer.window", "-3");
  EXPECT_ERROR(ConfigError, check({.window = 3, .dilation = {1, 0, 1, 1}}), "longformer.dilation",
               "0");
  EXPECT_ERROR(ConfigError, check({.window = 3, .dilation = {1, 2}}), "longformer.dilation", "4",
               "2");
  EXPECT_ERROR(ConfigError, check({.window = 3, .global_positions = {-1}}),
               "longformer.global_positions", "-1");
  EXPECT_ERROR(ConfigError, check({.window = 3, .projections = true}), "longformer.projections",
               "longformer.globals");
}

TEST(Longformer, CombinationsWithoutAMeaningAreRefusedByName) {
  const auto refuse = [](const std::function<void(AttentionSpec&)>& change, const char* name) {
    AttentionSpec spec = small_spec();
    spec.longformer = {.window = 4, .dilation = {1, 2, 1, 2}};
    change(spec);
    EXPECT_ERROR(UnsupportedError, spec.check(), "longformer", name);
  };
  refuse([](AttentionSpec& s) { s.mask.window = 3; }, "mask.window");
  refuse([](AttentionSpec& s) { s.mask.causal = false; }, "causal");
  refuse([](AttentionSpec& s) { s.focus.gate = FocusSpec::Gate::log; }, "focus");
  refuse([](AttentionSpec& s) { s.routing.clusters = 2; }, "routing");
  refuse([](AttentionSpec& s) { s.blocks = {.size = 4, .pairs = {0, 0}}; }, "blocks");
  refuse([](AttentionSpec& s) { s.streaming.recent = 3; }, "streaming");
  refuse([](AttentionSpec& s) { s.multi_token.before = {2, 3}; }, "multi_token");
  refuse([](AttentionSpec& s) { s.differential = true; }, "differential");
  refuse([](AttentionSpec& s) { s.head_mix.before = HeadMixSpec::Kind::full; }, "head_mix");
}

}  // namespace
}  // namespace fovea::longformer_test
