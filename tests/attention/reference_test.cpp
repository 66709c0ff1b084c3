// The reference against independent truths: scalar loops, slices, merged parts, differences (spec
// 0.1, 4.7, 6.3, 6.4, 7.4, 7.5).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "fovea/attention/attention.h"
#include "fovea/attention/pipeline.h"
#include "fovea/attention/positions/bias.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/gradcheck.h"
#include "tests/support/scalar_attention.h"

namespace fovea::reference_test {
namespace {

using namespace fovea::testing;

AttentionContext with_lse(AttentionContext context = {}) {
  context.want_lse = true;
  return context;
}

// A scalar function of output and lse with different weights everywhere.
at::Tensor probe(const AttentionResult& result) {
  const at::Tensor finite = result.lse_bht.masked_fill(at::isinf(result.lse_bht.detach()), 0.0);
  return (result.out_bhte * random_normal(result.out_bhte.sizes(), 77)).sum() +
         (finite * random_normal(finite.sizes(), 78)).sum();
}

TEST(Reference, GradientsEqualCentralDifferencesForEveryStage) {
  for (const auto& [name, spec] : all_specs()) {
    AttentionSpec tiny = spec;
    tiny.head_dim = 3;
    const AttentionInputs in = random_inputs(tiny, 1, 6).with_gradient();
    const AttentionContext context = with_lse(packed_context({4, 2}));
    expect_gradients(
        [&](const auto&) {
          return probe(reference_attention(tiny, in.q, in.k, in.v, in.tensors, context));
        },
        in.leaves(), name);
  }
}

TEST(Reference, EqualsScalarLoopsForEveryStage) {
  for (const auto& [name, spec] : all_specs()) {
    for (const bool packed : {false, true}) {
      const AttentionInputs in = random_inputs(spec, 2, 19);
      const AttentionContext context =
          with_lse(packed ? packed_context({1, 11, 7}) : AttentionContext{});
      const AttentionResult got = reference_attention(spec, in.q, in.k, in.v, in.tensors, context);
      const ScalarResult truth = scalar_attention(spec, in, context);
      EXPECT_LT(relative_error(got.out_bhte, truth.out), 1e-13) << name;
      const at::Tensor empty = truth.lse.isneginf();  // routing leaves some rows nothing
      EXPECT_TRUE(got.lse_bht.isneginf().equal(empty)) << name;
      EXPECT_LT(
          relative_error(got.lse_bht.masked_fill(empty, 0.0), truth.lse.masked_fill(empty, 0.0)),
          1e-13)
          << name;
    }
  }
}

TEST(Reference, LastQueriesOfLongerKeysEqualScalarLoops) {
  for (const auto& [name, spec] : all_specs()) {
    const AttentionInputs in = random_inputs(spec, 1, 3, 13);
    const AttentionResult got = reference_attention(spec, in.q, in.k, in.v, in.tensors, with_lse());
    EXPECT_LT(relative_error(got.out_bhte, scalar_attention(spec, in).out), 1e-13) << name;
  }
}

// Spec 6.4, 13.15.
TEST(Alibi, SlopesOf8And12HeadsAreTheGoldenOnes) {
  const std::vector<double> eight = alibi_slopes(8), twelve = alibi_slopes(12);
  ASSERT_EQ(twelve.size(), 12u);
  for (int h = 0; h < 8; ++h) {
    EXPECT_DOUBLE_EQ(eight[h], std::exp2(-(h + 1)));
    EXPECT_DOUBLE_EQ(twelve[h], std::exp2(-(h + 1)));
  }
  for (int h = 0; h < 4; ++h) EXPECT_DOUBLE_EQ(twelve[8 + h], std::exp2(-(0.5 + h)));
  EXPECT_EQ(alibi_slopes(1), std::vector<double>{std::exp2(-8.0)});
}

// Spec 6.3, 13.15.
TEST(T5, BucketsOf32AndDistance128AreTheGoldenOnes) {
  const std::vector<int64_t> distance{0, 1, 15, 16, 32, 64, 127, 128, 5000, -3};
  const std::vector<int64_t> bucket{0, 1, 15, 16, 21, 26, 31, 31, 31, 0};
  EXPECT_TRUE(t5_buckets(at::tensor(distance), 32, 128, true).equal(at::tensor(bucket)));
}

TEST(T5, BidirectionalBucketsGiveLaterKeysTheSecondHalf) {
  const std::vector<int64_t> distance{0, 7, 8, 127, 200, -1, -7, -8, -200};
  const std::vector<int64_t> bucket{0, 7, 8, 15, 15, 17, 23, 24, 31};
  EXPECT_TRUE(t5_buckets(at::tensor(distance), 32, 128, false).equal(at::tensor(bucket)));
}

// Spec 7.5: a window is the same attention on the keys inside it.
TEST(Window, EqualsSlicingKeysAndValues) {
  const int64_t width = 4, t = 11;
  AttentionSpec windowed = small_spec(), plain = small_spec();
  windowed.mask.window = width;
  const AttentionInputs in = random_inputs(windowed, 2, t);
  const at::Tensor out = reference_attention(windowed, in.q, in.k, in.v).out_bhte;
  for (int64_t i = 0; i < t; ++i) {
    const int64_t begin = std::max<int64_t>(0, i - width + 1), n = i + 1 - begin;
    const at::Tensor row = reference_attention(plain, in.q.narrow(2, i, 1),
                                               in.k.narrow(2, begin, n), in.v.narrow(2, begin, n))
                               .out_bhte;
    EXPECT_LT(relative_error(out.narrow(2, i, 1), row), 1e-14);
  }
}

TEST(Window, SinksJoinTheSlicedKeys) {
  const int64_t width = 3, sinks = 2, t = 10;
  AttentionSpec spec = small_spec(), plain = small_spec();
  spec.mask.window = width, spec.mask.sinks = sinks;
  const AttentionInputs in = random_inputs(spec, 1, t);
  const at::Tensor out = reference_attention(spec, in.q, in.k, in.v).out_bhte;
  for (int64_t i = sinks + width; i < t; ++i) {
    const auto visible = [&](const at::Tensor& x) {
      return at::cat({x.narrow(2, 0, sinks), x.narrow(2, i - width + 1, width)}, 2);
    };
    const at::Tensor row =
        reference_attention(plain, in.q.narrow(2, i, 1), visible(in.k), visible(in.v)).out_bhte;
    EXPECT_LT(relative_error(out.narrow(2, i, 1), row), 1e-14);
  }
}

// Spec 7.4: small logits pass, large ones saturate at c; the mask comes after the cap.
TEST(SoftCap, BoundsTheLogitsAndVanishesForLargeC) {
  AttentionSpec capped = small_spec(1, 1, 4), wide = capped, plain = capped;
  capped.soft_cap = 2.0;
  wide.soft_cap = 1e7;
  AttentionInputs in = random_inputs(capped, 1, 9);
  EXPECT_LT(relative_error(reference_attention(wide, in.q, in.k, in.v).out_bhte,
                           reference_attention(plain, in.q, in.k, in.v).out_bhte),
            1e-12);
  in.q = in.q * 1e4;  // every logit is then +-c, so a row of n keys has lse in [ln n - c, ln n + c]
  const at::Tensor lse =
      reference_attention(capped, in.q, in.k, in.v, {}, with_lse()).lse_bht.reshape(-1);
  for (int64_t i = 0; i < 9; ++i) {
    EXPECT_LE(std::abs(lse[i].item<double>() - std::log(static_cast<double>(i + 1))), 2.0 + 1e-12);
  }
}

// Spec 7.5: plain output times sigmoid(lse - z), and the lse includes z.
TEST(SinkLogit, EqualsPlainOutputTimesSigmoidOfLseMinusSink) {
  AttentionSpec with = small_spec(), without = small_spec();
  with.sink_logit = true;
  const AttentionInputs in = random_inputs(with, 2, 13);
  const AttentionResult sunk = reference_attention(with, in.q, in.k, in.v, in.tensors, with_lse());
  const AttentionResult plain = reference_attention(without, in.q, in.k, in.v, {}, with_lse());
  const at::Tensor z = in.tensors.sink_logit_h.reshape({1, -1, 1});
  EXPECT_LT(
      relative_error(sunk.out_bhte, plain.out_bhte * at::sigmoid(plain.lse_bht - z).unsqueeze(-1)),
      1e-13);
  EXPECT_LT(relative_error(sunk.lse_bht, at::logaddexp(plain.lse_bht, z)), 1e-13);
}

// Spec 0.1: merging partial results over disjoint key sets.
TEST(Lse, MergesPartialResultsIntoTheWhole) {
  AttentionSpec spec = small_spec();
  spec.mask.causal = false;
  spec.soft_cap = 3.0;
  const AttentionInputs in = random_inputs(spec, 2, 5, 12);
  const AttentionResult whole = reference_attention(spec, in.q, in.k, in.v, {}, with_lse());
  const auto part = [&](int64_t begin, int64_t n) {
    return reference_attention(spec, in.q, in.k.narrow(2, begin, n), in.v.narrow(2, begin, n), {},
                               with_lse());
  };
  const AttentionResult a = part(0, 7), b = part(7, 5);
  const at::Tensor m = at::maximum(a.lse_bht, b.lse_bht), wa = (a.lse_bht - m).exp(),
                   wb = (b.lse_bht - m).exp();
  EXPECT_LT(relative_error((wa.unsqueeze(-1) * a.out_bhte + wb.unsqueeze(-1) * b.out_bhte) /
                               (wa + wb).unsqueeze(-1),
                           whole.out_bhte),
            1e-13);
  EXPECT_LT(relative_error(m + (wa + wb).log(), whole.lse_bht), 1e-13);
}

// Spec 0.1 (empty row), 13.22. The middle query belongs to a document without keys.
TEST(EmptyRow, IsZeroWithLseMinusInfinityAndGradientZeroOnEveryPath) {
  AttentionSpec spec = small_spec();
  AttentionContext context = with_lse();
  context.query_documents_bt = at::tensor(std::vector<int64_t>{0, 9, 0});
  context.key_documents_bs = at::tensor(std::vector<int64_t>{0, 0, 0});
  for (const Path path : {Path::automatic, Path::reference}) {
    for (const bool lse : {true, false}) {
      const AttentionInputs in = random_inputs(spec, 2, 3).with_gradient();
      context.want_lse = lse;
      const AttentionResult result = attention(spec, in.q, in.k, in.v, {}, context, path);
      EXPECT_TRUE(result.out_bhte.select(2, 1).eq(0.0).all().item<bool>());
      at::Tensor sum = result.out_bhte.sum();
      if (lse) {
        EXPECT_TRUE(at::isneginf(result.lse_bht.select(2, 1)).all().item<bool>());
        sum = sum + result.lse_bht.select(2, 0).sum();
      }
      const auto grads = gradients(sum, in.leaves());
      for (const at::Tensor& grad : grads) EXPECT_TRUE(at::isfinite(grad).all().item<bool>());
      EXPECT_TRUE(grads[0].select(2, 1).eq(0.0).all().item<bool>());
    }
  }
}

TEST(EmptyRow, GradientOfItsLseIsZeroNeverNan) {
  AttentionSpec spec = small_spec();
  AttentionContext context = with_lse();
  context.query_documents_bt = at::tensor(std::vector<int64_t>{5, 5});
  context.key_documents_bs = at::tensor(std::vector<int64_t>{0, 0});
  const AttentionInputs in = random_inputs(spec, 1, 2).with_gradient();
  const AttentionResult result = reference_attention(spec, in.q, in.k, in.v, {}, context);
  for (const at::Tensor& grad :
       gradients(result.lse_bht.exp().sum() + result.out_bhte.sum(), in.leaves())) {
    EXPECT_TRUE(grad.eq(0.0).all().item<bool>());
  }
}

// Spec 7.5: an empty row with a sink logit has lse z.
TEST(EmptyRow, WithASinkLogitHasThatLse) {
  AttentionSpec spec = small_spec();
  spec.sink_logit = true;
  AttentionContext context = with_lse();
  context.query_documents_bt = at::tensor(std::vector<int64_t>{5});
  context.key_documents_bs = at::tensor(std::vector<int64_t>{0, 0});
  const AttentionInputs in = random_inputs(spec, 1, 1, 2).with_gradient();
  const AttentionResult result = reference_attention(spec, in.q, in.k, in.v, in.tensors, context);
  EXPECT_TRUE(result.out_bhte.eq(0.0).all().item<bool>());
  EXPECT_TRUE(result.lse_bht.reshape(-1).allclose(in.tensors.sink_logit_h));
  EXPECT_TRUE(gradients(result.lse_bht.sum(), {in.tensors.sink_logit_h})[0].allclose(
      at::ones({4}, at::kDouble)));
}

TEST(EmptyRow, NoKeysAtAllGiveZeroOnEveryPath) {
  for (const bool sink : {false, true}) {
    AttentionSpec spec = small_spec();
    spec.sink_logit = sink;
    spec.mask.causal = false;
    const AttentionInputs in = random_inputs(spec, 2, 3, 0);
    for (const Path path : {Path::automatic, Path::reference}) {
      const AttentionResult result =
          attention(spec, in.q, in.k, in.v, in.tensors, with_lse(), path);
      EXPECT_TRUE(result.out_bhte.equal(at::zeros({2, 4, 3, 8}, at::kDouble)));
      EXPECT_TRUE(sink || at::isneginf(result.lse_bht).all().item<bool>());
    }
  }
}

TEST(Sizes, NoQueriesAndNoBatchGiveEmptyResults) {
  const AttentionSpec spec = small_spec();
  for (const auto& [b, t] : {std::pair<int64_t, int64_t>{0, 5}, {2, 0}}) {
    const AttentionInputs in = random_inputs(spec, b, t);
    EXPECT_EQ(attention(spec, in.q, in.k, in.v).out_bhte.sizes(), at::IntArrayRef({b, 4, t, 8}));
  }
}

}  // namespace
}  // namespace fovea::reference_test
