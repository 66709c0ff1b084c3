// Focal Attention: constant and learned temperatures (spec 10, F-1 ... F-12, 13.2).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/focal.h"

#include <gtest/gtest.h>

#include "tests/support/attention_inputs.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"

namespace fovea::focal_test {
namespace {

using namespace fovea::testing;
using Form = TemperatureSpec::Form;
using Bound = TemperatureSpec::Bound;

constexpr int64_t kHeadDim = 32;

TemperatureSpec learned(Form form, Bound bound = Bound::clip) {
  TemperatureSpec spec;
  spec.kind = TemperatureSpec::Kind::learned;
  spec.form = form;
  spec.bound = bound;
  return spec;
}

// Parameters whose taus scatter inside and outside the bounds.
TemperatureParameters parameters(int64_t width, double size, double bias) {
  return {random_normal({width}, 41, size), at::full({}, bias, at::kDouble)};
}

at::Tensor taus(const TemperatureSpec& spec, const TemperatureParameters& p, const at::Tensor& x,
                const AttentionContext& context = {}) {
  return temperature_rows(spec, kHeadDim, p, x, context).tau_bt;
}

// Spec 10.1, 13.2, F-5.
TEST(FocalConstant, EqualsFoldingOneOverTIntoTheQueryProjection) {
  for (const double cap :
       {0.0, 5.0}) {  // the identity survives a soft-cap, which acts after the scale
    AttentionSpec focal = small_spec(), plain = small_spec();
    focal.temperature.value = 0.4;
    focal.soft_cap = plain.soft_cap = cap;
    const AttentionInputs in = random_inputs(focal, 2, 17);
    const at::Tensor w = random_normal({8, 8}, 3), bias = random_normal({8}, 4);
    const auto out = [&](const AttentionSpec& spec, double factor) {
      const at::Tensor q = at::matmul(in.q, (w * factor).t()) + bias * factor;
      return attention(spec, q, in.k, in.v).out_bhte;
    };
    EXPECT_LT(relative_error(out(focal, 1.0), out(plain, 1.0 / 0.4)), 1e-12);
  }
}

// Spec 10.1: with QK-norm the gain absorbs 1/t, while a larger projection is normalised away.
TEST(FocalConstant, EqualsFoldingOneOverTIntoTheQueryGainUnderQkNorm) {
  AttentionSpec focal = small_spec(), plain = small_spec();
  focal.temperature.value = 0.4;
  const AttentionInputs in = random_inputs(focal, 1, 11);
  const at::Tensor gain = random_normal({8}, 5).abs() + 0.5;
  const auto normed = [](const at::Tensor& x) {
    return x * (x.square().mean(-1, true) + 1e-6).rsqrt();
  };
  const auto out = [&](const AttentionSpec& spec, const at::Tensor& q, const at::Tensor& g) {
    return attention(spec, normed(q) * g, in.k, in.v).out_bhte;
  };
  const at::Tensor sharp = out(focal, in.q, gain);
  EXPECT_LT(relative_error(out(plain, in.q, gain / 0.4), sharp), 1e-12);
  EXPECT_GT(relative_error(out(plain, in.q / 0.4, gain), sharp), 1e-2);
}

// Spec 13.1.
TEST(FocalConstant, OneIsStandardAttention) {
  AttentionSpec one = small_spec(), scaled = small_spec();
  one.temperature.value = 1.0;
  scaled.scale = 1.0 / std::sqrt(8.0);
  const AttentionInputs in = random_inputs(one, 1, 9);
  EXPECT_TRUE(attention(one, in.q, in.k, in.v)
                  .out_bhte.equal(attention(scaled, in.q, in.k, in.v).out_bhte));
}

TEST(FocalLearned, TauOfSqrtDIsStandardAttention) {
  AttentionSpec focal = small_spec(), plain = small_spec();
  focal.temperature.kind = TemperatureSpec::Kind::learned;
  AttentionInputs in = random_inputs(focal, 2, 9);
  in.tensors.tau_bt = at::full({2, 9}, std::sqrt(8.0), at::kDouble);
  EXPECT_LT(relative_error(attention(focal, in.q, in.k, in.v, in.tensors).out_bhte,
                           attention(plain, in.q, in.k, in.v).out_bhte),
            1e-14);
}

// Spec 10.2, F-1: all forms by scalar sums.
TEST(FocalLearned, FormsAreTheMeansOfTheirDefinition) {
  const at::Tensor x = random_normal({2, 7, 5}, 1);
  const TemperatureParameters p = parameters(5, 0.5, 3.6);
  TemperatureSpec wide = learned(Form::token);
  wide.tau_min = 1e-3, wide.tau_max = 1e3;  // nothing is clipped here
  const at::Tensor z = at::matmul(x, p.weight_c);
  const std::vector<std::pair<int64_t, int64_t>> documents{{0, 3}, {3, 7}};
  AttentionContext context;
  context.query_documents_bt = at::tensor(std::vector<int64_t>{4, 4, 4, 8, 8, 8, 8});
  for (const auto& [begin, end] : documents) {
    for (int64_t i = begin; i < end; ++i) {
      const auto tau = [&](Form form) {
        TemperatureSpec spec = wide;
        spec.form = form;
        return taus(spec, p, x, context).select(1, i);
      };
      EXPECT_LT(relative_error(tau(Form::token), z.select(1, i) + 3.6), 1e-14);
      EXPECT_LT(relative_error(tau(Form::prefix), z.slice(1, begin, i + 1).mean(1) + 3.6), 1e-14);
      EXPECT_LT(relative_error(tau(Form::sequence), z.slice(1, begin, end).mean(1) + 3.6), 1e-14);
      EXPECT_LT(relative_error(tau(Form::global), at::full({2}, 3.6, at::kDouble)), 1e-14);
    }
  }
}

// Spec 13.2.
TEST(FocalLearned, PrefixAtTheLastPositionIsExactlySequence) {
  const TemperatureParameters p = parameters(16, 0.3, 3.6);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor x = random_normal({3, 50, 16}, 2).to(dtype);
    const at::Tensor prefix = taus(learned(Form::prefix), p, x),
                     sequence = taus(learned(Form::sequence), p, x);
    EXPECT_TRUE(prefix.select(1, 49).equal(sequence.select(1, 49)));
    EXPECT_FALSE(prefix.select(1, 20).equal(sequence.select(1, 20)));
  }
}

// F-2, F-11: a document's taus and gradients do not notice its neighbours, to the bit.
TEST(FocalLearned, DocumentsOfAPackedRowDoNotNoticeEachOther) {
  const TemperatureParameters p = parameters(6, 0.3, 3.6);
  AttentionContext context;
  context.query_documents_bt = at::tensor(std::vector<int64_t>{0, 0, 0, 0, 1, 1, 1, 1, 1});
  for (const Form form : {Form::prefix, Form::sequence, Form::token}) {
    const auto run = [&](double first_document) {
      at::Tensor x = random_normal({1, 9, 6}, 7).to(at::kFloat);
      x.narrow(1, 0, 4).mul_(first_document);
      x.set_requires_grad(true);
      const at::Tensor tau = taus(learned(form), p, x, context);
      return std::pair(tau.narrow(1, 4, 5).detach(),
                       gradients(tau.sin().sum(), {x})[0].narrow(1, 4, 5));
    };
    const auto [tau_a, grad_a] = run(1.0);
    const auto [tau_b, grad_b] = run(-37.3);
    EXPECT_TRUE(tau_a.equal(tau_b));
    EXPECT_TRUE(grad_a.equal(grad_b));
  }
}

TEST(FocalLearned, AloneOrPackedATauIsTheSame) {
  const TemperatureParameters p = parameters(6, 0.3, 3.6);
  const at::Tensor x = random_normal({1, 9, 6}, 7).to(at::kFloat);
  AttentionContext context;
  context.query_documents_bt = at::tensor(std::vector<int64_t>{0, 0, 0, 0, 1, 1, 1, 1, 1});
  for (const Form form : {Form::prefix, Form::sequence, Form::token}) {
    EXPECT_TRUE(taus(learned(form), p, x, context)
                    .narrow(1, 4, 5)
                    .equal(taus(learned(form), p, x.narrow(1, 4, 5))));
  }
}

// F-3.
TEST(FocalLearned, BiasStartsInsideTheBounds) {
  for (const Bound bound : {Bound::clip, Bound::straight_through, Bound::sigmoid}) {
    const TemperatureSpec spec = learned(Form::prefix, bound);
    const TemperatureParameters p{
        at::zeros({5}, at::kDouble),
        at::full({}, initial_temperature_bias(spec, kHeadDim), at::kDouble)};
    const TemperatureRows rows =
        temperature_rows(spec, kHeadDim, p, random_normal({1, 4, 5}, 1), {});
    const at::Tensor middle =
        at::full({1, 4}, 0.5 * (spec.low(kHeadDim) + spec.high(kHeadDim)), at::kDouble);
    EXPECT_LT(relative_error(rows.tau_bt, middle), 1e-14);
    EXPECT_EQ(rows.clipped_share.item<float>(), 0.0f);
  }
}

// F-3: outside the bounds a clip has no gradient, straight-through the one it would have inside,
// sigmoid a small one.
TEST(FocalLearned, GradientOutsideTheBoundsIsTheOneOfTheBoundForm) {
  const auto slope = [](Bound bound) {
    const at::Tensor bias = at::full({}, 1e3, at::kDouble).set_requires_grad(true);
    const TemperatureRows rows = temperature_rows(
        learned(Form::global, bound), kHeadDim, {{}, bias}, at::zeros({1, 3, 5}, at::kDouble), {});
    return std::pair(gradients(rows.tau_bt.sum(), {bias})[0].item<double>(),
                     rows.clipped_share.item<float>());
  };
  EXPECT_EQ(slope(Bound::clip), std::pair(0.0, 1.0f));
  EXPECT_EQ(slope(Bound::straight_through), std::pair(3.0, 1.0f));
  EXPECT_LT(std::abs(slope(Bound::sigmoid).first), 1e-9);
}

TEST(FocalLearned, ClippedShareCountsRowsOutsideTheBounds) {
  const at::Tensor x = at::tensor({-100.0, 0.0, 100.0, 0.5}, at::kDouble).reshape({1, 4, 1});
  const TemperatureParameters p{at::ones({1}, at::kDouble), at::full({}, 3.7, at::kDouble)};
  const TemperatureRows rows = temperature_rows(learned(Form::token), kHeadDim, p, x, {});
  EXPECT_EQ(rows.clipped_share.item<float>(), 0.5f);
  EXPECT_DOUBLE_EQ(rows.tau_bt[0][0].item<double>(), 2.5);
  EXPECT_DOUBLE_EQ(rows.tau_bt[0][2].item<double>(), 5.0);
}

// F-6: bounds of d = 32 are half of those of d = 128.
TEST(FocalLearned, BoundsScaleWithTheRootOfTheHeadWidth) {
  TemperatureSpec spec;
  EXPECT_DOUBLE_EQ(spec.low(128), 5.0);
  EXPECT_DOUBLE_EQ(spec.high(32), 5.0);
  spec.scale_bounds = false;
  EXPECT_DOUBLE_EQ(spec.high(32), 10.0);
}

TEST(FocalLearned, GradientsEqualCentralDifferencesForEveryForm) {
  for (const Form form : {Form::sequence, Form::prefix, Form::token, Form::global}) {
    for (const Bound bound : {Bound::clip, Bound::sigmoid}) {
      const at::Tensor x = random_normal({2, 5, 3}, 1).set_requires_grad(true);
      TemperatureParameters p = parameters(3, 0.1, bound == Bound::sigmoid ? 0.1 : 3.7);
      p.weight_c.set_requires_grad(true);
      p.bias.set_requires_grad(true);
      AttentionContext context;
      context.query_documents_bt = at::tensor(std::vector<int64_t>{0, 0, 1, 1, 1});
      expect_gradients(
          [&](const auto&) {
            return (taus(learned(form, bound), p, x, context) * random_normal({2, 5}, 3)).sum();
          },
          {x, p.weight_c, p.bias}, "temperature");
    }
  }
}

// F-12: a running state continues the prefix mean to the bit, however the text is cut.
TEST(FocalLearned, RunningStateEqualsTheWholePrefixForEveryCut) {
  const TemperatureSpec spec = learned(Form::prefix);
  const TemperatureParameters p = parameters(6, 0.3, 3.6);
  const at::Tensor x = random_normal({2, 9, 6}, 3).to(at::kFloat);
  const at::Tensor whole = taus(spec, p, x);
  for (int64_t cut = 0; cut <= 9; ++cut) {
    TemperatureState state{at::zeros({2}, at::kDouble), at::zeros({2}, at::kLong)};
    std::vector<at::Tensor> parts;
    for (const auto& [begin, n] : {std::pair<int64_t, int64_t>{0, cut}, {cut, 9 - cut}}) {
      parts.push_back(
          temperature_rows(spec, kHeadDim, p, x.narrow(1, begin, n), {}, &state).tau_bt);
    }
    EXPECT_LT(relative_error(at::cat(parts, 1), whole), 1e-7) << cut;
    EXPECT_TRUE(state.count_b.equal(at::full({2}, 9, at::kLong)));
  }
}

TEST(FocalLearned, SequenceRefusesToDecode) {
  TemperatureState state{at::zeros({1}, at::kDouble), at::zeros({1}, at::kLong)};
  EXPECT_ERROR(UnsupportedError,
               temperature_rows(learned(Form::sequence), kHeadDim, parameters(3, 0.1, 4.0),
                                at::zeros({1, 2, 3}, at::kDouble), {}, &state),
               "sequence", "prefix");
}

}  // namespace
}  // namespace fovea::focal_test
