// The operators through torch's dispatcher. Python's side: tests/peers/check_ops.py.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/paths/ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fovea/config/reader.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/gradcheck.h"

namespace fovea::ops_test {
namespace {

using namespace fovea::testing;

std::optional<at::Tensor> given(const at::Tensor& x) {
  return x.defined() ? std::optional(x) : std::nullopt;
}

AttentionOperands operands_of(const AttentionSpec& spec, const AttentionInputs& in) {
  AttentionOperands x;
  x.spec = fields_to_json(spec).dump();
  x.tau = given(in.tensors.tau_bt);
  x.bias_table = given(in.tensors.bias_table);
  x.sink_logit = given(in.tensors.sink_logit_h);
  x.groups = given(in.tensors.groups_bsk);
  x.strength = given(in.tensors.focus_strength);
  x.kernel_before = given(in.tensors.kernel_before_hqk);
  x.kernel_after = given(in.tensors.kernel_after_hqk);
  x.mix_before = given(in.tensors.mix_before_noi);
  x.mix_after = given(in.tensors.mix_after_nio);
  x.members = given(in.tensors.members_bs);
  return x;
}

// Settings of one head whose tensors are operands. Some row of given blocks sees nothing, and an
// infinite lse has no error.
bool takes(const AttentionSpec& spec) {
  return !spec.routing.active() && !spec.blocks.active() && !spec.longformer.projections &&
         !spec.streaming.active() && !spec.performer.active() && !spec.differential &&
         !spec.head_output.active() && !spec.kv_shift.active();
}

// out, lse and the gradients of a sum that weighs both.
std::vector<at::Tensor> numbers(const at::Tensor& out, const at::Tensor& lse,
                                const AttentionInputs& in) {
  const at::Tensor sum = (out * random_normal(out.sizes(), 77).to(out.scalar_type())).sum() +
                         (lse * random_normal(lse.sizes(), 78).to(lse.scalar_type())).sum();
  std::vector<at::Tensor> all = gradients(sum, in.leaves());
  all.push_back(out.detach());
  all.push_back(lse.detach());
  return all;
}

template <class F>
std::string message_of(F&& call) {
  try {
    call();
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  }
  return "nothing was thrown";
}

TEST(Operators, EqualTheReferenceWithItsGradientsForEverySpec) {
  for (auto [name, spec] : all_specs()) {
    if (!takes(spec)) continue;
    if (spec.value_dim > 0) spec.value_dim = 24;
    const AttentionInputs in = random_inputs(spec, 2, 40);
    AttentionContext context;
    context.want_lse = true;
    const AttentionInputs wide = in.with_gradient();
    const AttentionResult truth =
        reference_attention(spec, wide.q, wide.k, wide.v, wide.tensors, context);
    const auto expected = numbers(truth.out_bhte, truth.lse_bht, wide);
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      const AttentionInputs x = in.to(dtype).with_gradient();
      const auto [out, lse] = call_attention_operator(x.q, x.k, x.v, operands_of(spec, x));
      const auto got = numbers(out, lse, x);
      for (size_t n = 0; n < expected.size(); ++n)
        EXPECT_LT(relative_error(got[n], expected[n]), dtype == at::kDouble ? 1e-12 : 1e-4)
            << name << " " << n;
    }
  }
}

// The operator's own backward pass starts from out and lse; autograd keeps more than that.
TEST(Operators, GradientsOfMixedLogitsAreThoseOfAutograd) {
  AttentionSpec base = small_spec(4, 2, 16);
  base.multi_token = {.before = {6, 11}, .after = {3, 4}};
  base.head_mix = {HeadMixSpec::Kind::full, HeadMixSpec::Kind::groups, 2};
  std::vector<NamedSpec> specs = focused_specs(base);
  specs.push_back({"joined", base});
  base.multi_token.renormalise = base.sink_logit = true;
  base.temperature.kind = TemperatureSpec::Kind::learned;
  specs.push_back({"renormalised, with temperature and sink logit", base});
  for (const auto& [name, spec] : specs) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      AttentionInputs in = random_inputs(spec, 2, 90).to(dtype);
      in.tensors = in.to(at::kFloat).tensors;
      const auto with_gradient = [&] {
        AttentionInputs x = in;
        for (at::Tensor* t : {&x.q, &x.k, &x.v}) *t = t->clone();
        x.tensors = in.to(at::kFloat).tensors;
        for (const at::Tensor& leaf : x.leaves()) leaf.set_requires_grad(true);
        return x;
      };
      const AttentionInputs x = with_gradient(), y = with_gradient();
      const auto [out, lse] = call_attention_operator(x.q, x.k, x.v, operands_of(spec, x));
      const AttentionResult by_autograd =
          attention(spec, y.q, y.k, y.v, y.tensors, {.want_lse = true}, Path::fused);
      const auto got = numbers(out, lse, x),
                 expected = numbers(by_autograd.out_bhte, by_autograd.lse_bht, y);
      for (size_t n = 0; n < expected.size(); ++n)
        EXPECT_LE(relative_error(got[n], expected[n]), 1e-6) << name << " " << n;
    }
  }
}

TEST(Operators, BFloat16AndFloat16HaveTheirGradients) {
  const AttentionSpec spec = small_spec(4, 2, 16);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const AttentionInputs coarse = random_inputs(spec, 1, 70).to(dtype);
    const AttentionInputs x = coarse.with_gradient(), wide = coarse.to(at::kDouble).with_gradient();
    const auto [out, lse] = call_attention_operator(x.q, x.k, x.v);
    EXPECT_EQ(out.scalar_type(), dtype);
    const auto got = gradients(out.sum(), x.leaves());
    const auto truth =
        gradients(reference_attention(spec, wide.q, wide.k, wide.v).out_bhte.sum(), wide.leaves());
    for (size_t n = 0; n < 3; ++n) {
      EXPECT_EQ(got[n].scalar_type(), dtype);
      EXPECT_LT(relative_error(got[n], truth[n]), 3e-2);
    }
  }
}

TEST(Operators, MetaTensorsHaveTheShapesAndStridesOfRealOnes) {
  const AttentionSpec spec = small_spec(4, 2, 16);
  const AttentionInputs in = random_inputs(spec, 2, 9, 30).to(at::kFloat);
  const auto meta = [](const at::Tensor& x) { return x.to(at::kMeta); };
  const auto [out, lse] = call_attention_operator(in.q, in.k, in.v);
  const auto [meta_out, meta_lse] = call_attention_operator(meta(in.q), meta(in.k), meta(in.v));
  EXPECT_EQ(meta_out.sizes(), out.sizes());
  EXPECT_EQ(meta_out.strides(), out.strides());
  EXPECT_EQ(meta_lse.sizes(), lse.sizes());
  EXPECT_EQ(meta_lse.scalar_type(), lse.scalar_type());
}

TEST(Operators, DocumentOffsetsEqualDocumentLabels) {
  const AttentionSpec spec = small_spec(4, 2, 16);
  const AttentionInputs in = random_inputs(spec, 2, 90).to(at::kFloat);
  const AttentionContext packed = packed_context({30, 45, 15});
  AttentionOperands by_offsets, by_labels;
  by_offsets.document_offsets = at::tensor({0, 30, 75, 90});
  by_labels.key_documents = packed.key_documents_bs;
  by_labels.query_documents = packed.query_documents_bt;
  EXPECT_TRUE(std::get<0>(call_attention_operator(in.q, in.k, in.v, by_offsets))
                  .equal(std::get<0>(call_attention_operator(in.q, in.k, in.v, by_labels))));
}

TEST(Operators, DropoutIsCountedFromTheSeed) {
  AttentionSpec spec = small_spec(4, 2, 16);
  spec.dropout = 0.5;
  const AttentionInputs in = random_inputs(spec, 1, 40).to(at::kFloat);
  AttentionOperands x = operands_of(spec, in);
  const auto out = [&] { return std::get<0>(call_attention_operator(in.q, in.k, in.v, x)); };
  const at::Tensor evaluation = out();
  x.dropout_seed = 5;
  const at::Tensor first = out();
  EXPECT_FALSE(first.equal(evaluation));
  EXPECT_TRUE(first.equal(out()));
  x.dropout_seed = 6;
  EXPECT_FALSE(first.equal(out()));
}

// Every bad input is refused by type and name, with the legal values.
TEST(Operators, RefuseBadInputByName) {
  using ::testing::HasSubstr;
  const AttentionSpec spec = small_spec(4, 2, 16);
  const AttentionInputs in = random_inputs(spec, 2, 12).to(at::kFloat);
  const at::Tensor &q = in.q, &k = in.k, &v = in.v;
  const auto refusal = [](const at::Tensor& a, const at::Tensor& b, const at::Tensor& c,
                          const AttentionOperands& x = {}) {
    return message_of([&] { call_attention_operator(a, b, c, x); });
  };
  const auto with_offsets = [&](const std::vector<int64_t>& offsets) {
    AttentionOperands x;
    x.document_offsets = at::tensor(offsets);
    return refusal(q, k, v, x);
  };
  EXPECT_THAT(refusal(q.to(at::kInt), k.to(at::kInt), v.to(at::kInt)),
              HasSubstr("ShapeError: [attention] q, k and v must share one floating dtype"));
  EXPECT_THAT(refusal(q, k.to(at::kDouble), v), HasSubstr("k differs from q"));
  EXPECT_THAT(refusal(q.select(0, 0), k, v), HasSubstr("q must have 4 dimensions"));
  EXPECT_THAT(refusal(q, k.narrow(3, 0, 8), v), HasSubstr("k must be [2, 2, 12, 16]"));
  EXPECT_THAT(refusal(q, k, v.narrow(2, 0, 8)), HasSubstr("v must be [2, 2, 12, 16]"));
  EXPECT_THAT(refusal(q, at::cat({k, k.narrow(1, 0, 1)}, 1), v), HasSubstr("kv_heads must divide"));
  const at::Tensor strided = k.transpose(2, 3).contiguous().transpose(2, 3);
  EXPECT_THAT(refusal(q, strided, v), HasSubstr("k must be contiguous along its last axis"));
  EXPECT_THAT(refusal(q, k, v, {.spec = R"({"soft_cop": 1})"}), HasSubstr("soft_cap"));
  EXPECT_THAT(refusal(q, k, v, {.spec = R"({"bias": {"kind": "t5"}})"}),
              HasSubstr("bias_table must be given"));
  EXPECT_THAT(refusal(q, k, v, {.spec = R"({"differential": true})"}),
              HasSubstr("UnsupportedError: [attention operator]"));
  EXPECT_THAT(with_offsets({0, -3, 12}), HasSubstr("ascend from 0 to 12; got 0 and then -3"));
  EXPECT_THAT(with_offsets({0, 9, 5, 12}), HasSubstr("got 9 and then 5"));
  EXPECT_THAT(with_offsets({0, 13}), HasSubstr("end with the 12 tokens"));
  EXPECT_THAT(with_offsets({0}), HasSubstr("two integers or more"));
}

}  // namespace
}  // namespace fovea::ops_test
