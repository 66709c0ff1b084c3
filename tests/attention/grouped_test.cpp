// Hard Focus by the grouped kernels behind attention(): the reference's numbers and gradients, and
// the choice of path and plan (spec 11.5).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/paths/grouped.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "fovea/attention/decode/cached_attention.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"

namespace fovea::grouped_test {
namespace {

using namespace fovea::testing;

AttentionSpec hard_spec(FocusSpec focus = {.groups = 8, .top_k = 2, .window = 16, .sinks = 2}) {
  AttentionSpec spec;
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.head_dim = 16;
  spec.value_dim = 24;
  spec.focus = focus;
  spec.focus.gate = FocusSpec::Gate::hard;
  return spec;
}

struct Numbers {
  at::Tensor out, lse;
  std::vector<at::Tensor> grads;
};

Numbers run(const AttentionSpec& spec, const AttentionInputs& leaves, AttentionContext context,
            std::optional<GroupedKind> kind, Path path = Path::fused) {
  context.want_lse = true;
  const AttentionInputs in = leaves.with_gradient();
  AttentionResult result;
  if (kind) {
    const AttentionCall call = checked_call(spec, in.q, in.k, in.v, in.tensors, context);
    const GroupedPlans plans = make_grouped_plans(call, kind);
    EXPECT_FALSE(plans.why_not) << *plans.why_not;
    result = grouped_attention(call, plans);
  } else {
    result = attention(spec, in.q, in.k, in.v, in.tensors, context, path);
    EXPECT_EQ(result.path.name, path == Path::reference ? PathName::reference : PathName::grouped);
  }
  const at::ScalarType wide = in.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor sum =
      (result.out_bhte.to(wide) * random_normal(result.out_bhte.sizes(), 77).to(wide)).sum() +
      (result.lse_bht * random_normal(result.lse_bht.sizes(), 78).to(wide)).sum();
  return {result.out_bhte.detach(), result.lse_bht.detach(), gradients(sum, in.leaves())};
}

void expect_close(const Numbers& got, const Numbers& truth, double forward, double backward,
                  const std::string& what) {
  EXPECT_LT(relative_error(got.out, truth.out), forward) << what;
  EXPECT_LT(relative_error(got.lse, truth.lse), forward) << what;
  for (size_t n = 0; n < truth.grads.size(); ++n)
    EXPECT_LT(relative_error(got.grads[n], truth.grads[n]), backward) << what << " gradient " << n;
}

TEST(Grouped, EqualsTheFloat64ReferenceWithItsGradientsForEveryPlan) {
  AttentionSpec spec = hard_spec();
  spec.soft_cap = 4.0;
  spec.sink_logit = true;
  spec.temperature.kind = TemperatureSpec::Kind::learned;
  for (const AttentionContext& context :
       {AttentionContext{}, packed_context({60, 1, 59}), packed_context({7, 113})}) {
    const AttentionInputs in = random_inputs(spec, 2, 120);
    const Numbers truth = run(spec, in, context, std::nullopt, Path::reference);
    for (const GroupedKind kind :
         {GroupedKind::block_sparse, GroupedKind::classes, GroupedKind::groups}) {
      const std::string name(enum_names(kind)[static_cast<size_t>(kind)]);
      expect_close(run(spec, in.to(at::kFloat), context, kind), truth, 1e-5, 1e-4, name);
      const AttentionInputs coarse = in.to(at::kBFloat16);
      expect_close(run(spec, coarse, context, kind),
                   run(spec, coarse.to(at::kDouble), context, std::nullopt, Path::reference), 1e-2,
                   3e-2, name);
    }
    expect_close(run(spec, in.to(at::kFloat), context, std::nullopt), truth, 1e-5, 1e-4, "chosen");
  }
}

TEST(Grouped, MaskWindowsAreIntersected) {
  AttentionSpec spec = hard_spec();
  for (const int64_t window : {5, 16, 40}) {
    spec.mask.window = window;
    spec.mask.sinks = 1;
    const AttentionInputs in = random_inputs(spec, 1, 100);
    expect_close(run(spec, in.to(at::kFloat), {}, std::nullopt),
                 run(spec, in, {}, std::nullopt, Path::reference), 1e-5, 1e-4,
                 std::to_string(window));
  }
}

TEST(Grouped, ChunksOfAPromptEqualTheWholeForEveryPlan) {
  const AttentionSpec spec = hard_spec();
  const AttentionInputs in = random_inputs(spec, 1, 200).to(at::kFloat);
  const at::NoGradGuard no_gradient;
  const auto by = [&](GroupedKind kind, int64_t begin, int64_t end) {
    const AttentionInputs some = in.tokens(0, end);
    const AttentionCall call =
        checked_call(spec, some.q.narrow(2, begin, end - begin), some.k, some.v, some.tensors, {});
    return grouped_attention(call, make_grouped_plans(call, kind)).out_bhte;
  };
  for (const GroupedKind kind :
       {GroupedKind::block_sparse, GroupedKind::classes, GroupedKind::groups}) {
    const at::Tensor whole = by(kind, 0, 200);
    const at::Tensor parts = at::cat({by(kind, 0, 64), by(kind, 64, 65), by(kind, 65, 200)}, 2);
    EXPECT_LT(relative_error(parts, whole), 1e-6);
  }
}

TEST(Grouped, RowsOfABatchHavePlansOfTheirOwn) {
  const AttentionSpec spec = hard_spec();
  const AttentionInputs in = random_inputs(spec, 3, 150).to(at::kFloat);
  const at::Tensor all = attention(spec, in.q, in.k, in.v, in.tensors).out_bhte;
  for (int64_t b = 0; b < 3; ++b) {
    const auto row = [b](const at::Tensor& x) { return x.narrow(0, b, 1); };
    const AttentionTensors tensors{.members_bs = row(in.tensors.members_bs)};
    EXPECT_TRUE(attention(spec, row(in.q), row(in.k), row(in.v), tensors).out_bhte.equal(row(all)));
  }
}

TEST(Grouped, IsTakenOnItsOwnAndSaysWhichPlanAndWhy) {
  const auto taken = [](const AttentionSpec& spec, const AttentionInputs& in,
                        const AttentionContext& context = {}) {
    return attention(spec, in.q, in.k, in.v, in.tensors, context).path;
  };
  AttentionSpec spec = hard_spec({.groups = 8, .top_k = 1, .window = 16, .sinks = 2});
  AttentionInputs in = random_inputs(spec, 1, 700).to(at::kFloat);
  PathTaken path = taken(spec, in);
  EXPECT_EQ(path.name, PathName::grouped);
  EXPECT_EQ(path.plan, PlanWord::classes);
  EXPECT_NE(path.reason.text().find("block_sparse"), std::string::npos) << path.reason.text();
  AttentionContext context;
  context.want_stats = true;
  path = taken(spec, in, context);
  EXPECT_GT(path.tiles, 0.0);
  EXPECT_LT(path.tiles, path.causal_tiles);
  in.tensors.members_bs.fill_(4);
  EXPECT_EQ(taken(spec, in).plan, PlanWord::dense);
  EXPECT_EQ(taken(spec, in.to(at::kDouble)).name, PathName::reference);
  spec.bias.kind = BiasSpec::Kind::alibi;
  EXPECT_EQ(taken(spec, in).name, PathName::reference);
  EXPECT_NE(taken(spec, in).reason.text().find("position bias"), std::string::npos);
  spec = hard_spec({.groups = 8, .top_k = 5, .window = 16});  // 2k > K keeps every pair
  in = random_inputs(spec, 1, 100).to(at::kFloat);
  EXPECT_EQ(taken(spec, in).name, PathName::fused);
}

TEST(Grouped, TelemetryIsThatOfTheReference) {
  const AttentionSpec spec = hard_spec();
  const AttentionInputs in = random_inputs(spec, 2, 130).to(at::kFloat);
  AttentionContext context;
  context.want_stats = true;
  const AttentionStats truth = attention_stats(spec, in.q, in.k, in.tensors);
  for (const GroupedKind kind :
       {GroupedKind::block_sparse, GroupedKind::classes, GroupedKind::groups}) {
    const AttentionCall call = checked_call(spec, in.q, in.k, in.v, in.tensors, context);
    const AttentionStats got = grouped_attention(call, make_grouped_plans(call, kind)).stats;
    EXPECT_LT(relative_error(got.entropy_h, truth.entropy_h), 1e-5);
    EXPECT_LT(relative_error(got.largest_weight_h, truth.largest_weight_h), 1e-5);
    EXPECT_LT(relative_error(got.sink_mass_h, truth.sink_mass_h), 1e-5);
  }
}

// Token by token, with a chunk between, forgetting and forking: the rows of the whole.
TEST(Grouped, DecodingEqualsTheWhole) {
  for (const int64_t mask_window : {0, 60}) {
    AttentionSpec spec = hard_spec({.groups = 8, .top_k = 1, .window = 8, .sinks = 2});
    spec.mask.window = mask_window;
    const AttentionInputs in = random_inputs(spec, 2, 150).to(at::kFloat);
    const at::Tensor whole = reference_attention(spec, in.q, in.k, in.v, in.tensors).out_bhte;
    AttentionCache cache(cache_streams(spec, at::kFloat), 2, 200);
    const auto step = [&](AttentionCache& at, int64_t begin, int64_t n) {
      const AttentionInputs some = in.tokens(begin, n);
      return cached_attention(spec, at, some.q, some.k, some.v, some.tensors);
    };
    step(cache, 0, 100);
    for (int64_t i = 100; i < 130; ++i) {
      const AttentionResult result = step(cache, i, 1);
      EXPECT_EQ(result.path.plan_text(), "grouped scan");
      EXPECT_LT(relative_error(result.out_bhte, whole.narrow(2, i, 1)), 1e-5) << i;
    }
    AttentionCache fork = cache.fork();
    EXPECT_LT(relative_error(step(fork, 130, 20).out_bhte, whole.narrow(2, 130, 20)), 1e-5);
    if (mask_window == 0) {
      cache.truncate(110);
      EXPECT_LT(relative_error(step(cache, 110, 1).out_bhte, whole.narrow(2, 110, 1)), 1e-5);
    }
  }
}

TEST(Grouped, DecodingHoldsForRowsOfUnequalLengthsAndBfloat16) {
  const AttentionSpec spec = hard_spec();
  const AttentionInputs in = random_inputs(spec, 3, 1, 120);
  AttentionContext context;
  context.want_lse = true;
  context.key_lengths_b = at::tensor({120, 7, 64}, at::kLong);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const AttentionInputs some = in.to(dtype);
    const at::NoGradGuard no_gradient;
    const AttentionResult got =
        attention(spec, some.q, some.k, some.v, some.tensors, context, Path::fused);
    EXPECT_EQ(got.path.plan, PlanWord::scan);
    for (int64_t b = 0; b < 3; ++b) {
      const int64_t n = context.key_lengths_b[b].item<int64_t>();
      const auto row = [&](const at::Tensor& x, int64_t dim) {
        return x.narrow(0, b, 1).narrow(dim, 0, n);
      };
      const AttentionInputs wide = some.to(at::kDouble);
      const AttentionTensors tensors{.members_bs = row(some.tensors.members_bs, 1)};
      const at::Tensor truth =
          reference_attention(spec, wide.q.narrow(0, b, 1), row(wide.k, 2), row(wide.v, 2), tensors)
              .out_bhte;
      EXPECT_LT(relative_error(got.out_bhte.narrow(0, b, 1), truth),
                dtype == at::kFloat ? 1e-5 : 1e-2);
    }
  }
}

TEST(Grouped, RefusesBadMembershipsAndPlacesByName) {
  const AttentionSpec spec = hard_spec({.groups = 4, .top_k = 1, .window = 3});
  const AttentionInputs in = random_inputs(spec, 1, 40).to(at::kFloat);
  const auto call = [&](const AttentionTensors& tensors, const AttentionContext& context,
                        Path path) {
    return attention(spec, in.q, in.k, in.v, tensors, context, path);
  };
  AttentionTensors beyond = in.tensors;
  beyond.members_bs = in.tensors.members_bs.clone();
  beyond.members_bs[0][7] = 16;
  EXPECT_ERROR(ShapeError, call(beyond, {}, Path::automatic), "token 7", "group 4");
  AttentionContext unsorted;
  unsorted.key_positions_bs = unsorted.query_positions_bt = at::arange(40).flip(0).unsqueeze(0);
  EXPECT_ERROR(UnsupportedError, call(in.tensors, unsorted, Path::fused), "ascend");
  EXPECT_EQ(call(in.tensors, unsorted, Path::automatic).path.name, PathName::reference);
}

}  // namespace
}  // namespace fovea::grouped_test
