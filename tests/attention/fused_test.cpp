// The fused kernels behind attention(): the reference's numbers in float32 and bfloat16, and the
// choice of path.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "fovea/attention/attention.h"
#include "fovea/attention/plan.h"
#include "fovea/kernels/backend.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"

namespace fovea::fused_test {
namespace {

using namespace fovea::testing;

struct Numbers {
  at::Tensor out, lse;
  std::vector<at::Tensor> grads;
};

// Output, lse and the gradients of a sum that weighs both.
Numbers run(const AttentionSpec& spec, const AttentionInputs& leaves, AttentionContext context,
            Path path) {
  context.want_lse = true;
  const AttentionInputs in = leaves.with_gradient();
  const AttentionResult result = attention(spec, in.q, in.k, in.v, in.tensors, context, path);
  if (path == Path::fused) {
    EXPECT_EQ(result.path.name, PathName::fused);
  }
  const at::ScalarType wide = in.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor lse = result.lse_bht;  // rows without keys have no finite lse
  lse = at::where(lse.isfinite(), lse, at::zeros_like(lse));
  const at::Tensor sum =
      (result.out_bhte.to(wide) * random_normal(result.out_bhte.sizes(), 77).to(wide)).sum() +
      (lse * random_normal(lse.sizes(), 78).to(lse.scalar_type())).sum();
  return {result.out_bhte.detach(), lse.detach(), gradients(sum, in.leaves())};
}

void expect_close(const Numbers& got, const Numbers& truth, double forward, double backward,
                  const std::string& what) {
  EXPECT_LT(relative_error(got.out, truth.out), forward) << what;
  EXPECT_LT(relative_error(got.lse, truth.lse), forward) << what;
  for (size_t n = 0; n < truth.grads.size(); ++n) {
    EXPECT_LT(relative_error(got.grads[n], truth.grads[n]), backward) << what << " gradient " << n;
  }
}

// The library of specs with widths that have kernels, causal and (where defined) not, with and
// without dropout.
std::vector<NamedSpec> fused_specs() {
  std::vector<NamedSpec> all;
  for (auto [name, spec] : all_specs()) {
    if (reference_only(spec)) continue;
    if (spec.value_dim > 0) spec.value_dim = 24;
    all.push_back({name, spec});
    AttentionSpec dropping = spec;
    dropping.dropout = 0.25;
    all.push_back({name + " dropout", dropping});
    if (spec.bias.kind == BiasSpec::Kind::alibi || spec.focus.active()) continue;
    spec.mask.causal = false;
    all.push_back({name + " both ways", spec});
  }
  return all;
}

std::vector<AttentionContext> contexts() {
  std::vector<AttentionContext> all{{}, packed_context({30, 40, 27})};
  for (AttentionContext& context : all) {
    context.training = true;
    context.dropout_seed = 7;
    context.layer = 2;
  }
  return all;
}

TEST(Fused, EqualsTheFloat64ReferenceWithItsGradientsForEveryPointwiseSpec) {
  for (const auto& [name, spec] : fused_specs()) {
    for (const AttentionContext& context : contexts()) {
      const AttentionInputs in = random_inputs(spec, 2, 97);
      expect_close(run(spec, in.to(at::kFloat), context, Path::fused),
                   run(spec, in, context, Path::reference), 1e-5, 1e-4, name);
    }
  }
}

TEST(Fused, BFloat16AndFloat16StayWithinTheirRounding) {
  for (const auto& [name, spec] : fused_specs()) {
    if (spec.differential || spec.head_output.active()) continue;  // after the kernels
    const double roundings = spec.kv_shift.active() ? 2.0 : 1.0;   // of keys and values
    for (const AttentionContext& context : contexts()) {
      const AttentionInputs in = random_inputs(spec, 1, 97);
      const AttentionInputs coarse = in.to(at::kBFloat16), half = in.to(at::kHalf);
      expect_close(run(spec, coarse, context, Path::fused),
                   run(spec, coarse.to(at::kDouble), context, Path::reference), 1e-2 * roundings,
                   3e-2 * roundings, name);
      expect_close(run(spec, half, context, Path::fused),
                   run(spec, half.to(at::kDouble), context, Path::reference), 1e-3 * roundings,
                   2e-3 * roundings, name);
    }
  }
}

// Gates with K of the paper, a window that leaves distant pairs, GQA, several blocks and every
// combination that scales or masks (11.2, U-23).
std::vector<NamedSpec> focus_specs() {
  std::vector<NamedSpec> all;
  for (const FocusSpec::Gate gate :
       {FocusSpec::Gate::log, FocusSpec::Gate::mul, FocusSpec::Gate::identity,
        FocusSpec::Gate::logsig, FocusSpec::Gate::straight_through}) {
    AttentionSpec spec = small_spec(4, 2, 16);
    spec.focus = {.gate = gate, .groups = 8, .window = 20, .sinks = 2};
    all.push_back({std::string(enum_name(gate)), spec});
    spec.temperature.kind = TemperatureSpec::Kind::learned;
    spec.soft_cap = 3.0, spec.sink_logit = true;
    spec.mask.window = 150, spec.mask.sinks = 1;
    spec.bias = {BiasSpec::Kind::t5, 8, 16};
    all.push_back({std::string(enum_name(gate)) + " and everything", spec});
  }
  return all;
}

TEST(Fused, GatesOfFocusEqualTheFloat64ReferenceWithTheGradientsOfGroups) {
  for (const auto& [name, spec] : focus_specs()) {
    for (const AttentionContext& context : {AttentionContext{}, packed_context({110, 90})}) {
      const AttentionInputs in = random_inputs(spec, 2, 200);
      const Numbers truth = run(spec, in, context, Path::reference);
      expect_close(run(spec, in.to(at::kFloat), context, Path::fused), truth, 1e-5, 1e-4, name);
      const AttentionInputs coarse = in.to(at::kBFloat16);
      expect_close(run(spec, coarse, context, Path::fused),
                   run(spec, coarse.to(at::kDouble), context, Path::reference), 1e-2, 3e-2, name);
    }
    const AttentionInputs chunk = random_inputs(spec, 2, 70, 150);  // queries are the last keys
    expect_close(run(spec, chunk.to(at::kFloat), {}, Path::fused),
                 run(spec, chunk, {}, Path::reference), 1e-5, 1e-4, name + " chunk");
  }
}

// The kept-mass loss (11.7): LSE of the plain pass less that of the gated one, and its gradient to
// the groups.
TEST(Fused, KeptMassOfAGateIsThatOfTheReference) {
  AttentionSpec plain = small_spec(4, 2, 16), gated = plain;
  gated.focus = {.gate = FocusSpec::Gate::log, .groups = 8, .window = 20, .sinks = 2};
  const AttentionInputs in = random_inputs(gated, 2, 200);
  const auto loss = [&](at::ScalarType dtype, Path path) {
    const AttentionInputs x = in.to(dtype).with_gradient();
    const AttentionContext context{.want_lse = true};
    const at::Tensor whole = attention(plain, x.q, x.k, x.v, {}, context, path).lse_bht,
                     kept = attention(gated, x.q, x.k, x.v, x.tensors, context, path).lse_bht;
    const at::Tensor mean = (whole - kept).mean();
    return std::pair{mean.detach(), gradients(mean, {x.tensors.groups_bsk})[0]};
  };
  const auto [truth, slope] = loss(at::kDouble, Path::reference);
  const auto [got, got_slope] = loss(at::kFloat, Path::fused);
  EXPECT_GT(truth.item<double>(), 0.1);
  EXPECT_LT(relative_error(got, truth), 1e-5);
  EXPECT_LT(relative_error(got_slope, slope), 1e-4);
}

TEST(Fused, OddLengthsAgreeWithFloat64) {
  const AttentionSpec spec = small_spec(2, 1, 24);
  for (const int64_t t : {1, 3, 19, 257, 1025}) {
    const AttentionInputs in = random_inputs(spec, 1, t);
    const Numbers got = run(spec, in.to(at::kFloat), {}, Path::fused),
                  truth = run(spec, in, {}, Path::reference);
    expect_close(got, truth, 1e-5, 1e-4, fmt::format("t = {}", t));
  }
}

TEST(Fused, ChunksOfQueriesEqualTheirRowsOfTheWhole) {
  const AttentionSpec spec = small_spec(6, 2, 16);
  for (const int64_t t : {1, 5, 70}) {
    const AttentionInputs in = random_inputs(spec, 2, t, 150);
    expect_close(run(spec, in.to(at::kFloat), {}, Path::fused), run(spec, in, {}, Path::reference),
                 1e-5, 1e-4, fmt::format("{} queries", t));
  }
}

TEST(Fused, EmptyRowsAreZeroWithLseMinusInfinityAndNoGradient) {
  const AttentionSpec spec = small_spec();
  AttentionContext context;
  context.want_lse = true;
  context.key_documents_bs = at::zeros({1, 70}, at::kLong);
  context.query_documents_bt = at::zeros({1, 70}, at::kLong);
  context.query_documents_bt.narrow(1, 20, 30).fill_(4);  // a document without keys
  const AttentionInputs in = random_inputs(spec, 1, 70).to(at::kFloat).with_gradient();
  const AttentionResult result = attention(spec, in.q, in.k, in.v, {}, context, Path::fused);
  EXPECT_TRUE(result.out_bhte.narrow(2, 20, 30).eq(0.0).all().item<bool>());
  EXPECT_TRUE(result.lse_bht.narrow(2, 20, 30).isneginf().all().item<bool>());
  const auto grads = gradients(result.out_bhte.sum(), in.leaves());
  EXPECT_TRUE(grads[0].narrow(2, 20, 30).eq(0.0).all().item<bool>());
  for (const at::Tensor& g : grads) EXPECT_TRUE(g.isfinite().all().item<bool>());
}

TEST(Fused, AnyStridesGiveTheSameBits) {
  const AttentionSpec spec = small_spec(4, 2, 16);
  const AttentionInputs in = random_inputs(spec, 2, 90).to(at::kFloat);
  const auto numbers = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    AttentionInputs leaves{q, k, v, {}};
    for (at::Tensor* x : {&leaves.q, &leaves.k, &leaves.v})
      *x = x->detach().set_requires_grad(true);
    const at::Tensor out =
        attention(spec, leaves.q, leaves.k, leaves.v, {}, {}, Path::fused).out_bhte;
    std::vector<at::Tensor> all = gradients(out.square().sum(), leaves.leaves());
    all.push_back(out.detach());
    return all;
  };
  const auto by_token = in.q.transpose(1, 2).contiguous().transpose(1, 2);
  const auto every_second = at::stack({in.k, in.k + 1.0}, -1).select(-1, 0);
  const auto cut_out = at::cat({in.v, in.v}, 2).narrow(2, 90, 90);
  const auto plain = numbers(in.q, in.k, in.v), strided = numbers(by_token, every_second, cut_out);
  for (size_t n = 0; n < plain.size(); ++n) EXPECT_TRUE(plain[n].equal(strided[n])) << n;
}

TEST(Fused, RowsDoNotNoticeThreadsBatchOrLaterKeys) {
  const AttentionSpec spec = small_spec(4, 2, 16);
  const AttentionInputs in = random_inputs(spec, 3, 300).to(at::kFloat);
  const auto out = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return attention(spec, q, k, v, {}, {}, Path::fused).out_bhte;
  };
  const at::Tensor whole = out(in.q, in.k, in.v);
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  EXPECT_TRUE(out(in.q, in.k, in.v).equal(whole));
  at::set_num_threads(before);
  const auto row = [](const at::Tensor& x) { return x.narrow(0, 1, 1); };
  EXPECT_TRUE(out(row(in.q), row(in.k), row(in.v)).equal(row(whole)));
  at::Tensor changed = in.k.clone();
  changed.narrow(2, 200, 100).mul_(50.0);
  EXPECT_TRUE(out(in.q, changed, in.v).narrow(2, 0, 200).equal(whole.narrow(2, 0, 200)));
}

TEST(Fused, IsTakenWhereThereIsAKernelAndSaysSo) {
  const auto taken = [](const AttentionSpec& spec, at::ScalarType dtype,
                        const AttentionContext& context = {}) {
    const AttentionInputs in = random_inputs(spec, 1, 80).to(dtype);
    return attention(spec, in.q, in.k, in.v, in.tensors, context).path;
  };
  AttentionSpec spec = small_spec();
  EXPECT_EQ(taken(spec, at::kFloat).name, PathName::fused);
  EXPECT_EQ(taken(spec, at::kFloat).isa, kernels::cpu().isa<kernels::AttentionForward<float>>());
  EXPECT_EQ(taken(spec, at::kBFloat16).isa,
            kernels::cpu().isa<kernels::AttentionForward<BFloat16>>());
  EXPECT_EQ(taken(spec, at::kFloat).plan, PlanWord::causal);
  EXPECT_EQ(taken(spec, at::kFloat, packed_context({40, 40})).plan, PlanWord::documents);
  EXPECT_EQ(taken(spec, at::kFloat, packed_context({80})).plan, PlanWord::causal);
  EXPECT_EQ(taken(spec, at::kDouble).name, PathName::torch_sdpa);
  spec.mask.window = 4;
  EXPECT_EQ(taken(spec, at::kFloat).plan, PlanWord::window);
  spec.soft_cap = 4.0;
  EXPECT_EQ(taken(spec, at::kFloat).name, PathName::fused);
  spec.focus = {.gate = FocusSpec::Gate::log, .window = 30};
  EXPECT_EQ(taken(spec, at::kFloat).name, PathName::fused);
  spec.focus.epsilon = 1e-30;
  EXPECT_EQ(taken(spec, at::kFloat).name, PathName::reference);
  spec = small_spec(4, 2, 12);
  EXPECT_EQ(taken(spec, at::kFloat).name, PathName::torch_sdpa);
  EXPECT_NE(taken(spec, at::kFloat).reason.text().find("multiple of 8"), std::string::npos);
}

TEST(Fused, IsRefusedByNameWhereThereIsNoKernel) {
  const AttentionSpec narrow = small_spec(2, 1, 12), spec = small_spec();
  const AttentionInputs a = random_inputs(narrow, 1, 4).to(at::kFloat),
                        b = random_inputs(spec, 1, 4);
  EXPECT_ERROR(UnsupportedError, attention(narrow, a.q, a.k, a.v, {}, {}, Path::fused), "fused",
               "multiple of 8", "12");
  EXPECT_ERROR(UnsupportedError, attention(spec, b.q, b.k, b.v, {}, {}, Path::fused), "Double");
}

TEST(Fused, VisitsAreDerivedOnceForTheLayersOfABatch) {
  AttentionSpec first = small_spec(), sharper = first, windowed = first;
  sharper.temperature.value = 0.4;
  windowed.mask.window = 5;
  const AttentionContext context = packed_context({50, 47});
  const CallShape shape{.batch = 1, .queries = 97, .keys = 97};
  PlanCache cache;
  EXPECT_EQ(cache.visits(first, context, shape, kernels::cpu().tile_sizes()),
            cache.visits(sharper, context, shape, kernels::cpu().tile_sizes()));
  EXPECT_NE(cache.visits(first, context, shape, kernels::cpu().tile_sizes()),
            cache.visits(windowed, context, shape, kernels::cpu().tile_sizes()));
}

}  // namespace
}  // namespace fovea::fused_test
