// Every path gives the reference's numbers, in every dtype and size, and says what it was (design,
// sections 1 and 5).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "fovea/attention/attention.h"
#include "fovea/attention/plan.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/every_isa.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"

namespace fovea::paths_test {
namespace {

using namespace fovea::testing;

struct Numbers {
  at::Tensor out;
  std::vector<at::Tensor> grads;
};

Numbers run(const AttentionSpec& spec, const AttentionInputs& leaves,
            const AttentionContext& context, Path path) {
  const AttentionInputs in = leaves.with_gradient();
  const AttentionResult result = attention(spec, in.q, in.k, in.v, in.tensors, context, path);
  const at::Tensor weights =
      random_normal(result.out_bhte.sizes(), 77).to(result.out_bhte.scalar_type());
  return {result.out_bhte.detach(), gradients((result.out_bhte * weights).sum(), in.leaves())};
}

// Errors of output and gradients against `truth`, relative to its size (absolute where it is 0, as
// gradients of rows with one key).
double error_of(const at::Tensor& got, const at::Tensor& truth) {
  return truth.abs().max().item<double>() < 1e-9 ? got.abs().max().item<double>()
                                                 : relative_error(got, truth);
}

void expect_close(const Numbers& got, const Numbers& truth, double forward, double backward,
                  const std::string& what) {
  EXPECT_LT(relative_error(got.out, truth.out), forward) << what;
  for (size_t n = 0; n < truth.grads.size(); ++n) {
    EXPECT_LT(error_of(got.grads[n], truth.grads[n]), backward) << what << ", gradient " << n;
  }
}

std::vector<AttentionContext> contexts(int64_t t) {
  if (t < 3) return {{}};
  return {{}, packed_context({t / 3, t - t / 3}), packed_context({t / 2, 1, t - t / 2 - 1})};
}

TEST(Automatic, EqualsTheReferenceWithItsGradientsForEveryStage) {
  for (const auto& [name, spec] : all_specs()) {
    if (reference_only(spec)) continue;
    for (const AttentionContext& context : contexts(97)) {
      const AttentionInputs in = random_inputs(spec, 2, 97);
      expect_close(run(spec, in, context, Path::automatic), run(spec, in, context, Path::reference),
                   1e-12, 1e-12, name);
    }
  }
}

TEST(Float32, IsWithin1e5ForwardAnd1e4BackwardOfFloat64) {
  for (const Path path : {Path::automatic, Path::reference}) {
    for (const auto& [name, spec] : all_specs()) {
      if (reference_only(spec) && path == Path::automatic) continue;
      for (const AttentionContext& context : contexts(97)) {
        const AttentionInputs in = random_inputs(spec, 2, 97);
        expect_close(run(spec, in.to(at::kFloat), context, path),
                     run(spec, in, context, Path::reference), 1e-5, 1e-4, name);
      }
    }
  }
}

TEST(Sizes, OddLengthsAgreeWithFloat64) {
  AttentionSpec spec = small_spec();
  for (const int64_t t : {1, 3, 19, 97, 257}) {
    for (const AttentionContext& context : contexts(t)) {
      const AttentionInputs in = random_inputs(spec, 1, t);
      expect_close(run(spec, in.to(at::kFloat), context, Path::automatic),
                   run(spec, in, context, Path::reference), 1e-5, 1e-4, fmt::format("t = {}", t));
    }
  }
}

TEST(Sizes, HeadWidthsFrom8To256AgreeWithFloat64) {
  for (const int64_t d : {8, 16, 32, 48, 64, 80, 96, 128, 192, 256}) {
    const AttentionSpec spec = small_spec(2, 1, d);
    const AttentionInputs in = random_inputs(spec, 1, 33);
    expect_close(run(spec, in.to(at::kFloat), packed_context({20, 13}), Path::automatic),
                 run(spec, in, packed_context({20, 13}), Path::reference), 1e-5, 1e-4,
                 fmt::format("d = {}", d));
  }
}

// Spec 7.5: head h reads key head h / (H / Hkv).
TEST(GroupedHeads, EqualRepeatedKeyAndValueHeadsForEveryRatio) {
  for (const int64_t kv_heads : {1, 2, 3, 6}) {
    const AttentionSpec grouped = small_spec(6, kv_heads, 8), full = small_spec(6, 6, 8);
    const AttentionInputs in = random_inputs(grouped, 2, 19);
    const auto repeat = [&](const at::Tensor& x) { return x.repeat_interleave(6 / kv_heads, 1); };
    for (const Path path : {Path::automatic, Path::reference}) {
      EXPECT_LT(
          relative_error(attention(grouped, in.q, in.k, in.v, {}, {}, path).out_bhte,
                         attention(full, in.q, repeat(in.k), repeat(in.v), {}, {}, path).out_bhte),
          1e-14);
    }
  }
}

TEST(Strides, NonContiguousInputsGiveTheSameNumbers) {
  for (const auto& [name, spec] : all_specs()) {
    const AttentionInputs in = random_inputs(spec, 2, 40);
    AttentionInputs strided = in;
    const auto other_order = [](const at::Tensor& x) {
      return x.permute({0, 2, 1, 3}).contiguous().permute({0, 2, 1, 3});
    };
    const auto every_second = [](const at::Tensor& x) {
      return at::stack({x, x + 1.0}, -1).select(-1, 0);
    };
    strided.q = other_order(in.q);
    strided.k = every_second(in.k);
    strided.v = at::cat({in.v, in.v}, 2).narrow(2, 40, 40);
    for (const AttentionContext& context : contexts(40)) {
      for (const Path path : {Path::automatic, Path::reference}) {
        EXPECT_LT(relative_error(
                      attention(spec, strided.q, strided.k, strided.v, in.tensors, context, path)
                          .out_bhte,
                      attention(spec, in.q, in.k, in.v, in.tensors, context, path).out_bhte),
                  1e-14)
            << name;
      }
    }
  }
}

// A sum hands back one number with stride 0 as the gradient of everything.
TEST(Strides, ExpandedOutputGradientsGiveTheSameGradients) {
  const AttentionSpec spec = small_spec();
  for (const AttentionContext& context : contexts(70)) {
    const AttentionInputs in = random_inputs(spec, 2, 70).with_gradient();
    const auto grads = [&](Path path) {
      return gradients(attention(spec, in.q, in.k, in.v, {}, context, path).out_bhte.sum(),
                       in.leaves());
    };
    EXPECT_LT(relative_error(grads(Path::automatic)[2], grads(Path::reference)[2]), 1e-13);
  }
}

// The composition that a reader would write down at that dtype: the measure of the 2x rule.
Numbers plain_tensor_operations(const AttentionSpec& spec, const AttentionInputs& leaves,
                                const AttentionContext& context) {
  const AttentionInputs in = leaves.with_gradient();
  const int64_t repeat = spec.heads / spec.kv_heads;
  const at::Tensor k = in.k.repeat_interleave(repeat, 1), v = in.v.repeat_interleave(repeat, 1);
  at::Tensor s = at::matmul(in.q, k.transpose(-1, -2));
  s = in.tensors.tau_bt.defined() ? s / in.tensors.tau_bt.unsqueeze(1).unsqueeze(-1)
                                  : s * spec.logit_scale();
  if (spec.soft_cap > 0.0) s = at::tanh(s / spec.soft_cap) * spec.soft_cap;
  const at::Tensor seen = allowed_mask(spec.mask, in.q.size(2), in.k.size(2), context, at::kCPU);
  s = s.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
  if (spec.sink_logit) {
    const at::Tensor z = in.tensors.sink_logit_h.reshape({1, -1, 1, 1});
    s = at::cat({s, z.expand({s.size(0), s.size(1), s.size(2), 1})}, -1);
  }
  const at::Tensor p = at::softmax(s, -1, at::kFloat).to(in.q.scalar_type());
  const at::Tensor out = at::matmul(p.narrow(-1, 0, in.k.size(2)), v);
  const at::Tensor weights = random_normal(out.sizes(), 77).to(out.scalar_type());
  return {out.detach(), gradients((out * weights).sum(), in.leaves())};
}

TEST(HalfPrecision, ErrorIsAtMostTwiceThatOfPlainTensorOperations) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const auto& [name, spec] : all_specs()) {
      if (spec.bias.kind != BiasSpec::Kind::none || reference_only(spec) || spec.focus.active() ||
          spec.head_output.active())
        continue;  // not in the plain composition
      for (const AttentionContext& context : contexts(64)) {
        const AttentionInputs half = random_inputs(spec, 2, 64).to(dtype);
        const Numbers truth = run(spec, half.to(at::kDouble), context, Path::reference);
        const Numbers plain = plain_tensor_operations(spec, half, context);
        for (const Path path : {Path::automatic, Path::reference}) {
          const Numbers got = run(spec, half, context, path);
          EXPECT_LE(relative_error(got.out, truth.out), 2.0 * relative_error(plain.out, truth.out))
              << name;
          for (size_t n = 0; n < truth.grads.size(); ++n) {
            EXPECT_LE(relative_error(got.grads[n], truth.grads[n]),
                      2.0 * relative_error(plain.grads[n], truth.grads[n]))
                << name << " gradient " << n << " " << at::toString(dtype);
          }
        }
      }
    }
  }
}

// Where one weight is near 1, dP - delta cancels: delta = dO.O needs more digits than out has.
TEST(HalfPrecision, GradientsOfSharpTemperaturesKeepTheirDigits) {
  constexpr size_t kTau = 3;  // among the leaves, behind q, k and v
  for (const int64_t head_dim : {33, 64}) {
    std::vector<NamedSpec> specs(8, {"plain", small_spec(4, 2, head_dim)});
    specs[1].name = "window and sinks", specs[1].spec.mask.window = 20;
    specs[1].spec.mask.sinks = 2;
    specs[2].name = "sink logit", specs[2].spec.sink_logit = true;
    specs[3].name = "gate of Focus";
    specs[3].spec.focus = {.gate = FocusSpec::Gate::log, .groups = 4, .window = 16, .sinks = 2};
    specs[4].name = "hard groups";
    specs[4].spec.focus = {.gate = FocusSpec::Gate::hard, .groups = 4, .top_k = 1, .window = 16};
    specs[5].name = "Longformer", specs[5].spec.longformer.window = 16;
    specs[5].spec.longformer.globals = 2;
    specs[6].name = "head mix", specs[6].spec.head_mix.before = HeadMixSpec::Kind::full;
    specs[7].name = "convolutions", specs[7].spec.multi_token.before = {3, 3};
    for (auto& [name, spec] : specs) {
      spec.temperature.kind = TemperatureSpec::Kind::learned;
      AttentionInputs in = random_inputs(spec, 2, 128);
      in.tensors.tau_bt = at::sigmoid(random_normal({2, 128}, 5, 3.0)) * 2.7 + 0.3;
      const AttentionInputs half = in.to(at::kBFloat16);
      const Numbers truth = run(spec, half.to(at::kDouble), {}, Path::reference);
      const Numbers got = run(spec, half, {}, Path::automatic);
      // Between the stages of mixed heads and convolutions numbers are rounded once more.
      const double most =
          spec.head_mix != HeadMixSpec{} || spec.multi_token.before.active() ? 4e-2 : 1e-2;
      for (size_t n = 0; n <= kTau; ++n)
        EXPECT_LT(relative_error(got.grads[n], truth.grads[n]), most)
            << name << ", head size " << head_dim << ", gradient " << n;
      if (name != "plain" && name != "sink logit") continue;
      const Numbers plain = plain_tensor_operations(spec, half, {});
      for (size_t n = 0; n < truth.grads.size(); ++n)
        EXPECT_LE(relative_error(got.grads[n], truth.grads[n]),
                  2.0 * relative_error(plain.grads[n], truth.grads[n]))
            << name << ", head size " << head_dim << ", gradient " << n;
    }
  }
}

TEST(HalfPrecision, OfSharpTemperaturesOnEveryInstructionSet) {
  expect_tests_pass_on_every_isa("HalfPrecision.GradientsOfSharp*");
}

TEST(PathTaken, SaysWhatWasDoneAndWhy) {
  const auto taken = [](const AttentionSpec& spec, const AttentionContext& context = {},
                        Path path = Path::automatic) {
    const AttentionInputs in = random_inputs(spec, 1, 80).with_gradient();
    return attention(spec, in.q, in.k, in.v, in.tensors, context, path).path;
  };
  AttentionSpec spec = small_spec();
  EXPECT_EQ(taken(spec).name, PathName::torch_sdpa);
  EXPECT_EQ(taken(spec).plan, PlanWord::causal);
  EXPECT_EQ(taken(spec, packed_context({40, 40})).plan, PlanWord::documents);
  EXPECT_EQ(taken(spec, packed_context({80})).plan, PlanWord::causal);
  EXPECT_EQ(taken(spec, {}, Path::reference).name, PathName::reference);
  spec.mask.window = 4;
  EXPECT_EQ(taken(spec).plan, PlanWord::window);
  spec.soft_cap = 4.0;
  EXPECT_EQ(taken(spec).name, PathName::reference);
  EXPECT_NE(taken(spec).reason.text().find("soft_cap"), std::string::npos);
}

TEST(PathTaken, FusedIsRefusedByNameWhereThereIsNone) {
  const AttentionSpec spec = small_spec();
  const AttentionInputs in = random_inputs(spec, 1, 4);
  EXPECT_ERROR(UnsupportedError, attention(spec, in.q, in.k, in.v, {}, {}, Path::fused), "fused",
               "automatic");
}

TEST(Lse, OfTheFastPathEqualsTheReference) {
  for (const AttentionContext& base : contexts(97)) {
    const AttentionSpec spec = small_spec();
    const AttentionInputs in = random_inputs(spec, 2, 97);
    AttentionContext context = base;
    context.want_lse = true;
    const AttentionResult fast = attention(spec, in.q, in.k, in.v, {}, context);
    EXPECT_EQ(fast.path.name, PathName::torch_sdpa);
    EXPECT_LT(relative_error(fast.lse_bht,
                             reference_attention(spec, in.q, in.k, in.v, {}, context).lse_bht),
              1e-13);
  }
}

TEST(Lse, HasTheReferencesGradientsOnTheFastPath) {
  for (const auto& [name, spec] : all_specs()) {
    if (reference_only(spec)) continue;
    for (const AttentionContext& base : contexts(97)) {
      AttentionContext context = base;
      context.want_lse = true;
      const AttentionInputs in = random_inputs(spec, 2, 97).with_gradient();
      const auto grads = [&](Path path, bool with_out) {
        const AttentionResult result = attention(spec, in.q, in.k, in.v, in.tensors, context, path);
        at::Tensor sum = (result.lse_bht * random_normal(result.lse_bht.sizes(), 5)).sum();
        if (with_out)
          sum = sum + (result.out_bhte * random_normal(result.out_bhte.sizes(), 6)).sum();
        return gradients(sum, in.leaves());
      };
      for (const bool with_out : {true, false}) {
        const auto fast = grads(Path::automatic, with_out), slow = grads(Path::reference, with_out);
        for (size_t n = 0; n < fast.size(); ++n) {
          EXPECT_LT(error_of(fast[n], slow[n]), 1e-12) << name << " gradient " << n;
        }
      }
    }
  }
}

TEST(Plan, IsTheCheapestExactOne) {
  using Kind = MaskPlan::Kind;
  const auto plan = [](const AttentionSpec& spec, const AttentionContext& context, int64_t t,
                       int64_t s) {
    return make_mask_plan(spec, context, {.batch = 2, .queries = t, .keys = s});
  };
  AttentionSpec spec = small_spec();
  EXPECT_EQ(plan(spec, {}, 9, 9)->kind, Kind::causal);
  EXPECT_EQ(plan(spec, {}, 1, 9)->kind, Kind::full);
  EXPECT_EQ(plan(spec, {}, 2, 9)->kind, Kind::mask);
  EXPECT_EQ(plan(spec, packed_context({9}), 9, 9)->kind, Kind::causal);
  EXPECT_EQ(plan(spec, packed_context({50, 47}), 97, 97)->kind, Kind::segments);
  EXPECT_EQ(plan(spec, packed_context({50, 47}), 97, 97)->segments.size(), 2u);
  EXPECT_EQ(plan(spec, packed_context({1, 1, 1, 1, 1}), 5, 5)->kind,
            Kind::mask);  // many tiny calls cost more
  spec.mask.window = 20;
  EXPECT_EQ(plan(spec, {}, 20, 20)->kind, Kind::causal);  // the window reaches everything
  EXPECT_EQ(plan(spec, {}, 21, 21)->kind, Kind::mask);
  spec.mask = {.causal = false};
  EXPECT_EQ(plan(spec, {}, 4, 9)->kind, Kind::full);
}

TEST(Plan, DocumentLabelsThatReturnStayOneDocument) {
  const AttentionSpec spec = small_spec();
  AttentionContext context = packed_context({40, 40, 40});
  context.query_documents_bt = context.key_documents_bs =
      at::cat({at::zeros({40}, at::kLong), at::ones({40}, at::kLong), at::zeros({40}, at::kLong)});
  context.query_positions_bt = context.key_positions_bs = at::arange(120, at::kLong);
  const AttentionInputs in = random_inputs(spec, 1, 120);
  EXPECT_LT(relative_error(attention(spec, in.q, in.k, in.v, {}, context).out_bhte,
                           reference_attention(spec, in.q, in.k, in.v, {}, context).out_bhte),
            1e-13);
}

TEST(Plan, IsBuiltOnceForTheLayersOfABatch) {
  AttentionSpec first = small_spec(), sharper = first, windowed = first;
  sharper.temperature.value = 0.4;
  windowed.mask.window = 5;
  const AttentionContext context = packed_context({50, 47});
  const CallShape shape{.batch = 1, .queries = 97, .keys = 97};
  PlanCache cache;
  EXPECT_EQ(cache.get(first, context, shape), cache.get(sharper, context, shape));
  EXPECT_NE(cache.get(first, context, shape), cache.get(windowed, context, shape));
}

}  // namespace
}  // namespace fovea::paths_test
