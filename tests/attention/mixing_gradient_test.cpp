// Gradients through the mixing kernels behind attention(): those of the reference in float64, for
// every operand by itself, and a model that trains on them.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fovea/attention/paths/mixing.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/gradcheck.h"
#include "tests/support/plain_mixing.h"

namespace fovea::mixing_gradient_test {
namespace {

using namespace fovea::testing;
using Mix = HeadMixSpec::Kind;

AttentionSpec joined_spec() {
  AttentionSpec spec = small_spec();
  spec.multi_token = {.before = {6, 11}, .after = {3, 4}};
  spec.head_mix = {Mix::full, Mix::groups, 2};
  return spec;
}

// Specs that the mixing kernels take: those of the library, and stages beside the mixing.
std::vector<NamedSpec> joined_specs() {
  std::vector<NamedSpec> all;
  for (const auto& [name, spec] : all_specs()) {
    const bool joins = spec.multi_token.before.active() || spec.multi_token.after.active() ||
                       spec.head_mix.before != Mix::none || spec.head_mix.after != Mix::none;
    if (joins && !spec.streaming.active() && !spec.longformer.active()) all.push_back({name, spec});
  }
  all.push_back({"joined", joined_spec()});
  all.push_back({"dropout", joined_spec()});
  all.back().spec.dropout = 0.25;
  all.push_back({"eq4 in a window", joined_spec()});
  all.back().spec.multi_token.equation = MultiTokenSpec::Equation::eq4;
  all.back().spec.mask.window = 20;
  all.push_back({"renormalised", joined_spec()});
  all.back().spec.multi_token.renormalise = true;
  all.push_back({"learned temperature, cap, sink", joined_spec()});
  all.back().spec.temperature.kind = TemperatureSpec::Kind::learned;
  all.back().spec.soft_cap = 2.0;
  all.back().spec.sink_logit = true;
  for (const NamedSpec& focused : focused_specs(joined_spec())) all.push_back(focused);
  return all;
}

std::vector<AttentionContext> contexts() {
  std::vector<AttentionContext> all{{}, packed_context({30, 40, 27})};
  for (AttentionContext& context : all) {
    context.training = context.want_lse = true;
    context.dropout_seed = 7;
    context.layer = 2;
  }
  return all;
}

// A loss that reads out and, where there is one map, lse; its gradients with respect to every leaf.
std::vector<at::Tensor> gradients_of(const AttentionSpec& spec, const AttentionInputs& given,
                                     const AttentionContext& context, Path path) {
  const AttentionInputs in = given.with_gradient();
  const AttentionResult y = attention(spec, in.q, in.k, in.v, in.tensors, context, path);
  const auto loss = [](const at::Tensor& x, uint64_t seed) {
    return (x * random_normal(x.sizes(), seed).to(x.scalar_type())).sum();
  };
  at::Tensor sum = loss(y.out_bhte, 11).to(at::kDouble);
  if (!spec.differential) sum = sum + loss(y.lse_bht, 12).to(at::kDouble);
  return gradients(sum, in.leaves());
}

// Design, section 5: 1e-4 of the largest.
TEST(MixingGradient, EqualsTheFloat64ReferenceForEverySpec) {
  for (const auto& [name, spec] : joined_specs()) {
    for (const AttentionContext& context : contexts()) {
      const AttentionInputs in = random_inputs(spec, 2, 97);
      const auto got = gradients_of(spec, in.to(at::kFloat), context, Path::fused),
                 truth = gradients_of(spec, in, context, Path::reference);
      ASSERT_EQ(got.size(), truth.size());
      for (size_t n = 0; n < got.size(); ++n)
        EXPECT_LT(relative_error(got[n], truth[n]), 1e-4) << name << ": leaf " << n;
    }
  }
}

// At most twice the error of plain tensor operations at the same dtype.
TEST(MixingGradient, BFloat16IsAsExactAsPlainOperations) {
  const AttentionSpec spec = joined_spec();
  const AttentionInputs in = random_inputs(spec, 1, 257).to(at::kBFloat16);
  const AttentionContext context = contexts()[0];
  const auto got = gradients_of(spec, in, context, Path::fused),
             plain = gradients_of(spec, in, context, Path::reference),
             truth = gradients_of(spec, in.to(at::kDouble), context, Path::reference);
  for (size_t n = 0; n < got.size(); ++n)
    EXPECT_LE(relative_error(got[n], truth[n]), 2.0 * relative_error(plain[n], truth[n]) + 4e-3)
        << "leaf " << n;
}

// The same against the operations of the official code (spec 3.2), each rounded; every gradient by
// itself.
TEST(MixingGradient, BFloat16HasAtMostTwiceTheErrorOfPlainTensorCode) {
  for (const AttentionSpec& spec : plain_mixing_specs()) {
    const AttentionInputs in = near_identity(spec, random_inputs(spec, 1, 500)).to(at::kBFloat16);
    const auto of = [](const at::Tensor& out, const AttentionInputs& leaves) {
      const at::Tensor weights = random_normal(out.sizes(), 11).to(out.scalar_type());
      return gradients((out * weights).sum().to(at::kDouble), leaves.leaves());
    };
    const auto by_path = [&](at::ScalarType dtype, Path path) {
      const AttentionInputs x = in.to(dtype).with_gradient();
      return of(attention(spec, x.q, x.k, x.v, x.tensors, {}, path).out_bhte, x);
    };
    const AttentionInputs leaves = in.with_gradient();
    const auto plain = of(plain_mixing(spec, leaves), leaves),
               got = by_path(at::kBFloat16, Path::fused),
               truth = by_path(at::kDouble, Path::reference);
    ASSERT_EQ(got.size(), truth.size());
    for (size_t n = 0; n < got.size(); ++n) {
      const double error = relative_error(got[n], truth[n]);
      EXPECT_LE(error, 2.0 * relative_error(plain[n], truth[n])) << "leaf " << n;
      EXPECT_LT(error, 2e-2) << "leaf " << n;
    }
  }
}

// Queries that are fewer than the keys, neighbours in memory, and an output that nobody reads.
TEST(MixingGradient, TakesStridedOperandsAndPartsOfTheOutput) {
  const AttentionSpec spec = joined_spec();
  const AttentionInputs in = random_inputs(spec, 2, 40);
  const auto of = [&](at::ScalarType dtype, Path path) {
    AttentionInputs x = in.to(dtype).with_gradient();
    const at::Tensor q = x.q.narrow(2, 25, 15);
    const AttentionResult y = attention(spec, q, x.k, x.v, x.tensors, {}, path);
    return gradients(y.out_bhte.narrow(2, 3, 5).square().sum(), x.leaves());
  };
  const auto got = of(at::kFloat, Path::fused), truth = of(at::kDouble, Path::reference);
  for (size_t n = 0; n < got.size(); ++n)
    EXPECT_LT(relative_error(got[n], truth[n]), 1e-4) << "leaf " << n;
}

// Steps along the fused gradients find hidden kernels and mixes again: the loss falls as along the
// reference's.
TEST(MixingGradient, TrainsLikeTheReference) {
  const AttentionSpec spec = joined_spec();
  const AttentionInputs truth = random_inputs(spec, 1, 64).to(at::kFloat);
  const at::Tensor wanted =
      attention(spec, truth.q, truth.k, truth.v, truth.tensors, {}, Path::fused).out_bhte.detach();
  const auto train = [&](Path path) {
    AttentionInputs x = truth;
    for (at::Tensor* t : {&x.tensors.kernel_before_hqk, &x.tensors.kernel_after_hqk,
                          &x.tensors.mix_before_noi, &x.tensors.mix_after_nio})
      *t = (*t * 0.8).detach().set_requires_grad(true);
    const std::vector<at::Tensor> learned{x.tensors.kernel_before_hqk, x.tensors.kernel_after_hqk,
                                          x.tensors.mix_before_noi, x.tensors.mix_after_nio};
    std::vector<double> losses;
    for (int step = 0; step < 30; ++step) {
      const at::Tensor loss =
          (attention(spec, x.q, x.k, x.v, x.tensors, {}, path).out_bhte - wanted).square().mean();
      losses.push_back(loss.item<double>());
      const auto d = gradients(loss, learned);
      const at::NoGradGuard no_gradient;
      for (size_t n = 0; n < learned.size(); ++n) learned[n].sub_(d[n], 0.05);
    }
    return losses;
  };
  const std::vector<double> fused = train(Path::fused), reference = train(Path::reference);
  EXPECT_LT(fused.back(), 0.7 * fused.front());
  for (size_t n = 0; n < fused.size(); ++n) EXPECT_NEAR(fused[n], reference[n], 1e-4 * fused[0]);
}

}  // namespace
}  // namespace fovea::mixing_gradient_test
