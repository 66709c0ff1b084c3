// Routing and given block pairs by the grouped kernels: the reference's numbers and gradients;
// clusters and what they follow (spec 4.3).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "fovea/attention/decode/cached_attention.h"
#include "fovea/attention/mechanisms/routing.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"

namespace fovea::listed_test {
namespace {

using namespace fovea::testing;

AttentionSpec base_spec() {
  AttentionSpec spec = small_spec(4, 2, 16);
  spec.value_dim = 24;
  return spec;
}

AttentionSpec routed(int64_t keep = 20) {
  AttentionSpec spec = base_spec();
  spec.routing = {.clusters = 3, .keep = keep};
  return spec;
}

// A band, a column and a hole.
AttentionSpec blocked(int64_t size) {
  AttentionSpec spec = base_spec();
  spec.blocks.size = size;
  for (int64_t q = 0; q < 1 + 200 / size; ++q) {
    if (q == 3) continue;
    for (const int64_t k : {q, q - 1, int64_t{0}, q + 2})
      if (k >= 0) spec.blocks.pairs.insert(spec.blocks.pairs.end(), {q, k});
  }
  return spec;
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
  const at::Tensor seen = r.lse_bht.isfinite();  // rows may see nothing
  const at::Tensor sum =
      (r.out_bhte.to(wide) * random_normal(r.out_bhte.sizes(), 77).to(wide)).sum() +
      r.lse_bht.masked_fill(seen.logical_not(), 0.0).sum();
  return {r.out_bhte.detach(), r.lse_bht.detach(), gradients(sum, in.leaves()), r.path};
}

void expect_as_reference(AttentionSpec spec, const std::string& what) {
  for (const bool settings : {false, true}) {
    if (settings) {
      spec.soft_cap = 4.0;
      spec.sink_logit = true;
      spec.temperature.kind = TemperatureSpec::Kind::learned;
    }
    for (const AttentionContext& context : {AttentionContext{}, packed_context({60, 1, 39})}) {
      const AttentionInputs in = random_inputs(spec, 1, 100);
      const Numbers truth = run(spec, in, context, Path::reference);
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        const double wide = dtype == at::kFloat ? 1.0 : 1e3;
        const Numbers expected =
            dtype == at::kFloat ? truth
                                : run(spec, in.to(dtype).to(at::kDouble), context, Path::reference);
        const Numbers got = run(spec, in.to(dtype), context, Path::fused);
        EXPECT_EQ(got.path.text(), "grouped lists");
        EXPECT_LT(relative_error(got.out, expected.out), wide * 1e-5) << what;
        const at::Tensor seen = expected.lse.isfinite();
        EXPECT_TRUE(got.lse.isfinite().equal(seen)) << what;
        EXPECT_LT(relative_error(got.lse.masked_select(seen), expected.lse.masked_select(seen)),
                  wide * 1e-5)
            << what;
        ASSERT_EQ(got.grads.size(), expected.grads.size());
        for (size_t n = 0; n < got.grads.size(); ++n)
          EXPECT_LT(relative_error(got.grads[n], expected.grads[n]), wide * 3e-5) << what << n;
      }
    }
  }
}

TEST(Listed, RoutingEqualsTheFloat64ReferenceWithItsGradients) {
  for (const int64_t keep : {1, 20}) expect_as_reference(routed(keep), std::to_string(keep));
}

// A row reads the last `keep` keys of its cluster, of those up to it in its document.
TEST(Listed, KeysThatRowsReadAreCounted) {
  const AttentionSpec spec = routed(7);
  const std::vector<int64_t> lengths{60, 1, 39};
  for (const bool packed : {false, true}) {
    const AttentionInputs in = random_inputs(spec, 2, 100).to(at::kFloat);
    const AttentionContext context = packed ? packed_context(lengths) : AttentionContext{};
    const at::Tensor same =
        in.tensors.query_routes_bht.unsqueeze(3).eq(in.tensors.key_routes_bhs.unsqueeze(2));
    at::Tensor allowed = at::ones({100, 100}, at::kBool);
    if (packed) {
      const at::Tensor document = at::repeat_interleave(at::tensor(lengths));
      allowed = document.unsqueeze(1).eq(document);
    }
    const at::Tensor read =
        same.logical_and(allowed.tril()).sum(-1).clamp_max(spec.routing.keep).to(at::kDouble);
    const KeysRead counted =
        attention(spec, in.q, in.k, in.v, in.tensors, context, Path::fused).path.keys_read;
    EXPECT_DOUBLE_EQ(counted.row, read.mean().item<double>());
    EXPECT_DOUBLE_EQ(counted.last_row, read.select(2, 99).mean().item<double>());
  }
}

TEST(Listed, GivenBlocksOfAnySizeEqualTheFloat64ReferenceWithItsGradients) {
  for (const int64_t size : {7, 32}) expect_as_reference(blocked(size), std::to_string(size));
}

// Blocks that nobody sees, blocks that see nobody, documents shorter than a block: rows may see
// nothing, and lists may have queries or keys alone.
TEST(Listed, BlocksWithFewPairsEqualTheReferenceWithItsGradients) {
  const std::vector<std::vector<int64_t>> all_pairs{
      {}, {0, 0}, {2, 0}, {5, 1, 3, 3}, {1, 0, 2, 0, 3, 0}, {6, 6, 0, 0}};
  for (const std::vector<int64_t>& pairs : all_pairs) {
    for (const AttentionContext& context :
         {AttentionContext{}, packed_context({3, 1, 7, 60, 5, 24})}) {
      AttentionSpec spec = base_spec();
      spec.blocks = {.size = 16, .pairs = pairs};
      const AttentionInputs in = random_inputs(spec, 2, 100);
      const Numbers truth = run(spec, in, context, Path::reference);
      const Numbers got = run(spec, in.to(at::kFloat), context, Path::fused);
      const std::string what = fmt::format("pairs {}", fmt::join(pairs, " "));
      EXPECT_LT(relative_error(got.out, truth.out), 1e-5) << what;
      for (size_t n = 0; n < got.grads.size(); ++n)
        EXPECT_LT(relative_error(got.grads[n], truth.grads[n]), 3e-5) << what << ", gradient " << n;
    }
  }
}

// Token by token, with chunks, forgetting and forking: the rows of the whole.
TEST(Listed, ChunksAndDecodingEqualTheWhole) {
  AttentionSpec nearest = routed(9);
  nearest.routing.choice = RoutingSpec::Choice::nearest;
  for (const AttentionSpec& spec : {routed(9), blocked(16), nearest}) {
    const AttentionInputs in = random_inputs(spec, 2, 150).to(at::kFloat);
    const at::Tensor whole = reference_attention(spec, in.q, in.k, in.v, in.tensors).out_bhte;
    AttentionCache cache(cache_streams(spec, at::kFloat), 2, 200);
    const auto step = [&](AttentionCache& at, int64_t begin, int64_t n) {
      const AttentionInputs some = in.tokens(begin, n);
      const AttentionResult result =
          cached_attention(spec, at, some.q, some.k, some.v, some.tensors);
      EXPECT_LT(relative_error(result.out_bhte, whole.narrow(2, begin, n)), 1e-5) << begin;
      return result.path.plan_text();
    };
    step(cache, 0, 60);
    step(cache, 60, 40);
    const bool fast = !spec.routing.reads_nearness();
    for (int64_t i = 100; i < 120; ++i)
      EXPECT_EQ(step(cache, i, 1), fast ? "grouped scan" : "reference dense");
    AttentionCache fork = cache.fork();
    step(fork, 120, 30);
    cache.truncate(110);
    step(cache, 110, 1);
  }
}

TEST(Listed, SaysWhyItIsNotTaken) {
  const auto reason = [](const AttentionSpec& spec) {
    const AttentionInputs in = random_inputs(spec, 1, 40).to(at::kFloat);
    const PathTaken path = attention(spec, in.q, in.k, in.v, in.tensors).path;
    EXPECT_EQ(path.name, PathName::reference);
    return path.reason.text();
  };
  AttentionSpec spec = routed();
  spec.routing.choice = RoutingSpec::Choice::nearest;
  EXPECT_NE(reason(spec).find("recent"), std::string::npos);
  spec = blocked(16);
  spec.bias.kind = BiasSpec::Kind::alibi;
  EXPECT_NE(reason(spec).find("position bias"), std::string::npos);
}

TEST(Listed, RoutesBeyondTheClustersAreRefused) {
  const AttentionSpec spec = routed();
  AttentionInputs in = random_inputs(spec, 1, 20).to(at::kFloat);
  in.tensors.key_routes_bhs[0][1][5] = 3;
  EXPECT_ERROR(ShapeError, attention(spec, in.q, in.k, in.v, in.tensors), "routing", "0 to 2", "3");
  in.tensors.key_routes_bhs = at::Tensor();
  EXPECT_ERROR(ShapeError, attention(spec, in.q, in.k, in.v, in.tensors), "key_routes");
}

TEST(Routing, ATokenBelongsToTheCentroidOfTheLargestProductAfterLayerNorm) {
  const RoutingSpec spec{.clusters = 3, .choice = RoutingSpec::Choice::nearest};
  const at::Tensor centroids = random_normal({4, 3, 8}, 1), q = random_normal({2, 4, 30, 8}, 2),
                   k = random_normal({2, 2, 30, 8}, 3);
  const Routes routes = route_tokens(spec, centroids, q * 5.0 + 2.0, k);
  for (int64_t h = 0; h < 4; ++h) {
    for (int64_t n = 0; n < 30; ++n) {
      const auto nearest = [&](const at::Tensor& x) {
        const at::Tensor flat = x - x.mean();
        return at::mv(centroids[h], flat).argmax().item<int64_t>();
      };
      EXPECT_EQ(routes.query_bht[1][h][n].item<int64_t>(), nearest(q[1][h][n]));
      EXPECT_EQ(routes.key_bhs[1][h][n].item<int64_t>(), nearest(k[1][h / 2][n]));
    }
  }
  EXPECT_EQ(routes.nearness_bhs.sizes(), at::IntArrayRef({2, 4, 30}));
}

// 4.3: EMA of sizes and sums; centroids are sums over smoothed sizes.
TEST(Routing, CentroidsAreTheRunningMeansOfTheirTokens) {
  const RoutingSpec spec{.clusters = 2};
  const at::Tensor centroids = random_normal({2, 2, 8}, 1), q = random_normal({1, 2, 50, 8}, 2);
  const Routes routes = route_tokens(spec, centroids, q, q);
  const RoutingObservation seen = observe_routes(routes, 2, q, q);
  EXPECT_EQ(seen.counts_hc.sum().item<double>(), 2 * 100.0);
  const at::Tensor sizes = at::ones({2, 2}, at::kDouble), sums = centroids.clone();
  at::Tensor followed;
  for (int n = 0; n < 60; ++n) followed = follow_clusters(seen, 0.5, sizes, sums);
  const at::Tensor means = seen.sums_hcd / seen.counts_hc.unsqueeze(-1);
  EXPECT_LT((followed - means).abs().max().item<double>(), 1e-5);
  EXPECT_LT((sizes - seen.counts_hc).abs().max().item<double>(), 1e-9);
}

}  // namespace
}  // namespace fovea::listed_test
