// StreamingLLM (spec 4.6): the cache of raw keys that it means as the truth, kernels with
// gradients, decoding at constant memory, refusals. Scalar loops, causality, packing and gradients
// of the reference run with those of every spec (all_specs()).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/specs/streaming.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "fovea/attention/decode/cached_attention.h"
#include "fovea/attention/mechanisms/streaming_rule.h"
#include "fovea/attention/positions/rope.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"
#include "tests/support/scalar_attention.h"

namespace fovea::streaming_test {
namespace {

using namespace fovea::testing;

AttentionSpec streaming(int64_t start, int64_t recent) {
  AttentionSpec spec = small_spec(4, 2, 16);
  spec.streaming = {.recent = recent, .start = start};
  return spec;
}

// Raw queries and keys of a text, rotated as the library does it.
AttentionInputs rotated(const AttentionSpec& spec, const AttentionInputs& raw) {
  const at::Tensor positions = at::arange(raw.q.size(2));
  const RopeTable table = make_rope_table({}, spec.head_dim, 256, at::kCPU, at::kDouble);
  AttentionInputs in = raw;
  in.q = apply_rope(raw.q, table, positions);
  in.k = apply_rope(raw.k, table, positions);
  in.tensors.start_q_bhtd = apply_rope(raw.q, table, places_in_cache(spec.streaming, positions));
  return in;
}

// A vector rotated to a position (spec 6.1, half-split).
std::vector<double> turned(const at::Tensor& x_d, int64_t position) {
  const int64_t d = x_d.size(0), half = d / 2;
  std::vector<double> y(static_cast<size_t>(d));
  for (int64_t t = 0; t < half; ++t) {
    const double angle = static_cast<double>(position) *
                         std::pow(10000.0, -2.0 * static_cast<double>(t) / static_cast<double>(d));
    const double a = x_d[t].item<double>(), b = x_d[t + half].item<double>();
    y[static_cast<size_t>(t)] = a * std::cos(angle) - b * std::sin(angle);
    y[static_cast<size_t>(t + half)] = a * std::sin(angle) + b * std::cos(angle);
  }
  return y;
}

// The cache form: tokens that stay, at positions 0, 1, ... of the cache; the query at the last one.
at::Tensor by_cache(const AttentionSpec& spec, const AttentionInputs& raw) {
  const int64_t t = raw.q.size(2), d = spec.head_dim;
  at::Tensor out = at::zeros({1, spec.heads, t, d}, at::kDouble);
  for (int64_t h = 0; h < spec.heads; ++h) {
    const int64_t g = h / (spec.heads / spec.kv_heads);
    std::vector<int64_t> cache;
    for (int64_t i = 0; i < t; ++i) {
      cache.push_back(i);
      if (std::ssize(cache) > spec.streaming.start + spec.streaming.recent)
        cache.erase(cache.begin() + spec.streaming.start);
      const std::vector<double> query = turned(raw.q[0][h][i], std::ssize(cache) - 1);
      std::vector<double> weights;
      double sum = 0.0;
      for (size_t n = 0; n < cache.size(); ++n) {
        const std::vector<double> key = turned(raw.k[0][g][cache[n]], static_cast<int64_t>(n));
        double logit = 0.0;
        for (size_t c = 0; c < key.size(); ++c) logit += query[c] * key[c];
        weights.push_back(std::exp(logit / std::sqrt(static_cast<double>(d))));
        sum += weights.back();
      }
      for (size_t n = 0; n < cache.size(); ++n)
        out[0][h][i] += raw.v[0][g][cache[n]] * (weights[n] / sum);
    }
  }
  return out;
}

TEST(Streaming, EqualsTheCacheOfRawKeysThatAreRotatedByTheirPlaceInIt) {
  for (const auto& [start, recent] : {std::pair<int64_t, int64_t>{3, 5}, {1, 1}, {4, 40}}) {
    const AttentionSpec spec = streaming(start, recent);
    AttentionSpec plain = spec;
    plain.streaming = {};
    const AttentionInputs raw = random_inputs(plain, 1, 24);
    const AttentionInputs in = rotated(spec, raw);
    const at::Tensor truth = by_cache(spec, raw);
    EXPECT_LT(
        relative_error(reference_attention(spec, in.q, in.k, in.v, in.tensors).out_bhte, truth),
        1e-12);
    const AttentionInputs narrow = in.to(at::kFloat);
    EXPECT_LT(
        relative_error(
            attention(spec, narrow.q, narrow.k, narrow.v, narrow.tensors, {}, Path::fused).out_bhte,
            truth),
        1e-5);
  }
}

// 13.1, and the mask that it is where nothing is rotated.
TEST(Streaming, IsPlainAttentionWhileTheCacheHoldsAllAndAMaskWithoutRotation) {
  const AttentionSpec spec = streaming(4, 26);
  AttentionSpec plain = small_spec(4, 2, 16), masked = plain;
  const AttentionInputs in = rotated(spec, random_inputs(plain, 1, 30));
  for (const Path path : {Path::automatic, Path::reference})
    EXPECT_LT(relative_error(attention(spec, in.q, in.k, in.v, in.tensors, {}, path).out_bhte,
                             attention(plain, in.q, in.k, in.v, {}, {}, path).out_bhte),
              1e-12);
  const AttentionSpec shorter = streaming(2, 7);
  masked.mask = {.window = 7, .sinks = 2};
  AttentionTensors same;
  same.start_q_bhtd = in.q;
  EXPECT_LT(relative_error(reference_attention(shorter, in.q, in.k, in.v, same).out_bhte,
                           reference_attention(masked, in.q, in.k, in.v).out_bhte),
            1e-13);
}

TEST(Streaming, WithoutStartKeysIsTheMaskOfAWindowBitForBit) {
  const AttentionSpec spec = streaming(0, 9);
  AttentionSpec masked = small_spec(4, 2, 16);
  masked.mask.window = 9;
  const AttentionInputs in = random_inputs(spec, 2, 60).to(at::kFloat);
  const AttentionResult got = attention(spec, in.q, in.k, in.v, in.tensors, {}, Path::fused);
  const AttentionResult mask = attention(masked, in.q, in.k, in.v, {}, {}, Path::fused);
  EXPECT_TRUE(got.out_bhte.equal(mask.out_bhte));
  EXPECT_EQ(got.path.text(), mask.path.text());
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

// Every stage that the kernels have; documents shorter than the start, and than the cache.
TEST(Streaming, KernelsEqualTheFloat64ReferenceWithTheirGradients) {
  std::vector<AttentionSpec> specs{streaming(4, 20), streaming(40, 1)};
  specs.push_back(streaming(3, 16));
  specs.back().soft_cap = 4.0, specs.back().sink_logit = true;
  specs.back().temperature.kind = TemperatureSpec::Kind::learned;
  specs.back().value_dim = 24;
  specs.push_back(streaming(3, 16));
  specs.back().bias.kind = BiasSpec::Kind::alibi;
  specs.push_back(streaming(5, 9));
  specs.back().bias = {BiasSpec::Kind::t5, 8, 16};
  specs.push_back(streaming(5, 9));
  specs.back().differential = true, specs.back().kv_heads = 4;
  for (const AttentionSpec& spec : specs) {
    for (const AttentionContext& context : {AttentionContext{}, packed_context({2, 60, 1, 37})}) {
      const AttentionInputs in = random_inputs(spec, 2, 100);
      const Numbers truth = run(spec, in, context, Path::reference);
      const Numbers got = run(spec, in.to(at::kFloat), context, Path::fused);
      EXPECT_EQ(got.path.text(), "fused window");
      EXPECT_LT(relative_error(got.out, truth.out), 1e-5);
      EXPECT_LT(relative_error(got.lse, truth.lse), 1e-5);
      ASSERT_EQ(got.grads.size(), truth.grads.size());
      for (size_t n = 0; n < got.grads.size(); ++n)
        EXPECT_LT(relative_error(got.grads[n], truth.grads[n]), 3e-5) << n;
      const AttentionInputs half = in.to(at::kBFloat16);
      EXPECT_LT(relative_error(run(spec, half, context, Path::fused).out,
                               run(spec, half.to(at::kDouble), context, Path::reference).out),
                spec.differential ? 3e-2 : 1e-2);
    }
  }
}

// Texts so long that kernels keep neighbouring tokens in rings, where start keys join block by
// block.
TEST(Streaming, LongTextsEqualTheReferenceWithTheirGradients) {
  AttentionSpec richer = streaming(3, 30);
  richer.soft_cap = 4.0, richer.sink_logit = true;
  richer.temperature.kind = TemperatureSpec::Kind::learned;
  richer.value_dim = 24;
  for (const AttentionSpec& spec : {streaming(4, 50), richer}) {
    const AttentionInputs in = random_inputs(spec, 2, 900);
    const Numbers truth = run(spec, in, {}, Path::reference);
    const Numbers got = run(spec, in.to(at::kFloat), {}, Path::fused);
    EXPECT_LT(relative_error(got.out, truth.out), 1e-5);
    EXPECT_LT(relative_error(got.lse, truth.lse), 1e-5);
    for (size_t n = 0; n < got.grads.size(); ++n)
      EXPECT_LT(relative_error(got.grads[n], truth.grads[n]), 3e-5) << n;
  }
}

TEST(Streaming, DropoutIsThatOfTheReference) {
  AttentionSpec spec = streaming(4, 20);
  spec.dropout = 0.3;
  AttentionContext context;
  context.training = true, context.dropout_seed = 9;
  const AttentionInputs in = random_inputs(spec, 2, 70);
  EXPECT_LT(relative_error(run(spec, in.to(at::kFloat), context, Path::fused).out,
                           run(spec, in, context, Path::reference).out),
            1e-5);
}

TEST(Streaming, LaterTokensChangeNoBitOnTheKernels) {
  const AttentionSpec spec = streaming(3, 20);
  for (const AttentionContext& context : {AttentionContext{}, packed_context({40, 30})}) {
    const AttentionInputs in = random_inputs(spec, 1, 70).to(at::kFloat);
    for (const int64_t i : {0, 2, 33, 50}) {
      AttentionInputs changed = in.to(at::kFloat);
      for (const at::Tensor& x : {changed.q, changed.k, changed.v, changed.tensors.start_q_bhtd})
        x.narrow(2, i + 1, 70 - i - 1).mul_(-3.0).add_(0.7);
      const auto out = [&](const AttentionInputs& x) {
        return attention(spec, x.q, x.k, x.v, x.tensors, context, Path::fused).out_bhte;
      };
      const at::Tensor before = out(in), after = out(changed);
      EXPECT_TRUE(before.narrow(2, 0, i + 1).equal(after.narrow(2, 0, i + 1))) << i;
      EXPECT_FALSE(before.equal(after));
    }
  }
}

// 13.4, with as many rows at token 1000 as at token 30.
TEST(Streaming, ChunksAndDecodingEqualTheWholeFromAConstantCache) {
  for (const int64_t start : {0, 3}) {
    AttentionSpec spec = streaming(start, 12);
    spec.sink_logit = true;
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      const AttentionInputs in = random_inputs(spec, 2, 1000).to(dtype);
      const at::Tensor whole = attention(spec, in.q, in.k, in.v, in.tensors).out_bhte;
      AttentionCache cache(cache_streams(spec, dtype), 2, 1000);
      const int64_t bytes = cache.bytes();
      const auto step = [&](AttentionCache& at, int64_t begin, int64_t n) {
        const AttentionInputs some = in.tokens(begin, n);
        const AttentionResult result =
            cached_attention(spec, at, some.q, some.k, some.v, some.tensors);
        EXPECT_LT(relative_error(result.out_bhte, whole.narrow(2, begin, n)),
                  dtype == at::kDouble ? 1e-12 : 1e-5)
            << begin;
        EXPECT_EQ(is_ours(result.path.inner), dtype == at::kFloat);
      };
      for (const auto& [begin, n] : {std::pair<int64_t, int64_t>{0, 2}, {2, 1}, {3, 11}, {14, 30}})
        step(cache, begin, n);
      for (int64_t i = 44; i < 200; ++i) step(cache, i, 1);
      AttentionCache fork = cache.fork();
      step(fork, 200, 40);
      cache.truncate(195);
      for (int64_t i = 195; i < 1000; ++i) {
        step(cache, i, 1);
        EXPECT_LE(cache.rows("keys").size(1), start + 12);
      }
      EXPECT_EQ(cache.bytes(), bytes);
    }
  }
}

TEST(Streaming, ImpossibleValuesAndCombinationsAreRefusedByName) {
  AttentionSpec spec = small_spec();
  spec.streaming = {.recent = -1};
  EXPECT_ERROR(ConfigError, spec.check(), "streaming.recent", "-1");
  spec.streaming = {.recent = 4, .start = -2};
  EXPECT_ERROR(ConfigError, spec.check(), "streaming.start", "-2");
  spec.streaming = {.recent = 0, .start = 7};
  EXPECT_ERROR(ConfigError, spec.check(), "streaming.start", "streaming.recent", "7");
  const auto refuse = [](const std::function<void(AttentionSpec&)>& change, const char* name) {
    AttentionSpec changed = small_spec();
    changed.streaming = {.recent = 8};
    change(changed);
    EXPECT_ERROR(UnsupportedError, changed.check(), "streaming", name);
  };
  refuse([](AttentionSpec& s) { s.mask.window = 3; }, "mask.window");
  refuse([](AttentionSpec& s) { s.mask.causal = false; }, "causal");
  refuse([](AttentionSpec& s) { s.focus.gate = FocusSpec::Gate::log; }, "focus");
  refuse([](AttentionSpec& s) { s.routing.clusters = 2; }, "routing");
  refuse([](AttentionSpec& s) { s.blocks = {.size = 4, .pairs = {0, 0}}; }, "blocks");
  refuse([](AttentionSpec& s) { s.multi_token.before = {2, 3}; }, "multi_token");
}

TEST(Streaming, QueriesOfStartKeysMustBeGiven) {
  const AttentionSpec spec = streaming(2, 5);
  AttentionInputs in = random_inputs(spec, 1, 9);
  in.tensors.start_q_bhtd = at::Tensor();
  EXPECT_ERROR(ShapeError, attention(spec, in.q, in.k, in.v, in.tensors), "start_queries",
               "streaming.recent 5");
}

}  // namespace
}  // namespace fovea::streaming_test
