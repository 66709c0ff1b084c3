// The mixing kernels behind attention(): the reference's numbers, the cache, causality, packed
// documents, and what is refused. Without gradients.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/paths/mixing.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <limits>

#include "fovea/attention/decode/cached_attention.h"
#include "fovea/attention/mechanisms/multi_token.h"
#include "fovea/attention/mechanisms/talking_heads.h"
#include "fovea/kernels/backend.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"
#include "tests/support/plain_mixing.h"

namespace fovea::mixing_test {
namespace {

using namespace fovea::testing;
using Mix = HeadMixSpec::Kind;

AttentionSpec joined_spec() {
  AttentionSpec spec = small_spec();
  spec.multi_token = {.before = {6, 11}, .after = {3, 4}};
  spec.head_mix = {Mix::full, Mix::groups, 2};
  return spec;
}

// Every spec of the library that joins pairs and that the kernels take, and more of them.
std::vector<NamedSpec> joined_specs() {
  std::vector<NamedSpec> all;
  const auto add = [&all](const std::string& name, const AttentionSpec& spec) {
    all.push_back({name, spec});
    all.push_back({name + " dropout", spec});
    all.back().spec.dropout = 0.25;
  };
  for (auto [name, spec] : all_specs()) {
    if (!spec.multi_token.before.active() && !spec.multi_token.after.active() &&
        spec.head_mix == HeadMixSpec{})
      continue;
    if (spec.streaming.active() || spec.longformer.active()) continue;
    add(name, spec);
  }
  add("joined", joined_spec());
  AttentionSpec spec = joined_spec();
  spec.mask.causal = false;
  add("both ways", spec);
  spec = joined_spec();
  spec.kv_shift = {.keys = true, .values = true};
  spec.multi_token.renormalise = true;
  add("shifted and renormalised", spec);
  spec = joined_spec();
  spec.multi_token.equation = MultiTokenSpec::Equation::eq4;
  spec.mask.window = 20, spec.mask.sinks = 3;
  add("eq4 in a window", spec);
  for (const NamedSpec& focused : focused_specs(joined_spec())) add(focused.name, focused.spec);
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

AttentionResult run(const AttentionSpec& spec, const AttentionInputs& in,
                    const AttentionContext& context = {}, Path path = Path::fused) {
  const at::NoGradGuard no_gradient;
  return attention(spec, in.q, in.k, in.v, in.tensors, context, path);
}

double lse_error(const at::Tensor& got, const at::Tensor& truth) {
  EXPECT_TRUE(at::equal(got.isneginf(), truth.isneginf()));
  return relative_error(got.masked_fill(got.isneginf(), 0.0),
                        truth.masked_fill(truth.isneginf(), 0.0));
}

TEST(Mixing, EqualsTheFloat64ReferenceForEverySpec) {
  for (const auto& [name, spec] : joined_specs()) {
    for (const AttentionContext& context : contexts()) {
      const AttentionInputs in = random_inputs(spec, 2, 97);
      const AttentionResult got = run(spec, in.to(at::kFloat), context),
                            truth = run(spec, in, context, Path::reference);
      EXPECT_EQ(got.path.name, PathName::fused) << name;
      EXPECT_EQ(got.path.isa, kernels::cpu().isa<kernels::MixingForward<float>>()) << name;
      EXPECT_LT(relative_error(got.out_bhte, truth.out_bhte), 1e-5) << name;
      EXPECT_LT(lse_error(got.lse_bht, truth.lse_bht), 1e-5) << name;
    }
  }
}

// M-15: products of rounded numbers, summed in float32.
TEST(Mixing, BFloat16AndFloat16StayWithinTheirRounding) {
  for (const auto& [name, spec] : joined_specs()) {
    if (spec.head_output.active() || spec.kv_shift.active()) continue;
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      const AttentionInputs in = random_inputs(spec, 1, 97).to(dtype);
      EXPECT_LT(
          relative_error(run(spec, in, contexts()[1]).out_bhte,
                         run(spec, in.to(at::kDouble), contexts()[1], Path::reference).out_bhte),
          dtype == at::kHalf ? 1e-3 : 1e-2)
          << name;
    }
  }
}

TEST(Mixing, BFloat16HasAtMostTwiceTheErrorOfPlainTensorCode) {
  for (const AttentionSpec& spec : plain_mixing_specs()) {
    const AttentionInputs in = near_identity(spec, random_inputs(spec, 1, 500)).to(at::kBFloat16);
    const at::Tensor truth = run(spec, in.to(at::kDouble), {}, Path::reference).out_bhte;
    const double error = relative_error(run(spec, in).out_bhte, truth);
    EXPECT_LT(error, 2.0 * relative_error(plain_mixing(spec, in), truth));
    EXPECT_LT(error, 2e-2);
  }
}

// 3.6, M-10, 13.4: decoding one token after the other, and chunks, from the cache.
TEST(Mixing, DecodingFromTheCacheEqualsTheWholeText) {
  for (const auto& [name, spec] : joined_specs()) {
    if (!spec.mask.causal || spec.dropout > 0.0) continue;
    const AttentionInputs in = random_inputs(spec, 2, 70).to(at::kFloat);
    const at::Tensor whole = run(spec, in).out_bhte;
    AttentionCache cache(cache_streams(spec, at::kFloat), 2, 70);
    int64_t begin = 0;
    for (const int64_t n : {1, 1, 30, 1, 2, 35}) {
      const AttentionInputs part = in.tokens(begin, n);
      const AttentionResult got =
          cached_attention(spec, cache, part.q, part.k, part.v, part.tensors, Path::fused);
      EXPECT_LT(relative_error(got.out_bhte, whole.narrow(2, begin, n)), 1e-5) << name;
      begin += n;
    }
  }
}

// 13.3, 9.10: to the bit, NaN and infinity included.
TEST(Mixing, LaterTokensAndOtherDocumentsChangeNoBit) {
  const AttentionSpec spec = joined_spec();
  const AttentionInputs in = random_inputs(spec, 2, 97).to(at::kFloat);
  AttentionInputs late = in, other = in;
  for (at::Tensor AttentionInputs::*x :
       {&AttentionInputs::q, &AttentionInputs::k, &AttentionInputs::v}) {
    (late.*x) = (in.*x).clone();
    (late.*x).narrow(2, 60, 37).fill_(std::numeric_limits<float>::quiet_NaN());
    (other.*x) = (in.*x).clone();
    (other.*x).narrow(2, 0, 30).fill_(std::numeric_limits<float>::infinity());
  }
  EXPECT_TRUE(at::equal(run(spec, late).out_bhte.narrow(2, 0, 60),
                        run(spec, in).out_bhte.narrow(2, 0, 60)));
  const AttentionContext packed = packed_context({30, 40, 27});
  EXPECT_TRUE(at::equal(run(spec, other, packed).out_bhte.narrow(2, 30, 67),
                        run(spec, in, packed).out_bhte.narrow(2, 30, 67)));
}

// A document alone gives the numbers that it has among others (9.10).
TEST(Mixing, ADocumentAloneEqualsTheSameInAPackedRow) {
  const AttentionSpec spec = joined_spec();
  const AttentionInputs in = random_inputs(spec, 1, 97).to(at::kFloat);
  EXPECT_LT(relative_error(run(spec, in, packed_context({30, 40, 27})).out_bhte.narrow(2, 30, 40),
                           run(spec, in.tokens(30, 40)).out_bhte),
            1e-6);
}

// Rows of a batch have masks of their own.
TEST(Mixing, EveryRowOfTheBatchHasItsOwnDocuments) {
  const AttentionSpec spec = joined_spec();
  const AttentionInputs in = random_inputs(spec, 2, 97);
  const AttentionContext first = packed_context({30, 40, 27}), second = packed_context({81, 16});
  AttentionContext both;
  const auto joined = [](const at::Tensor& a, const at::Tensor& b) { return at::cat({a, b}); };
  both.query_documents_bt = joined(first.query_documents_bt, second.query_documents_bt);
  both.key_documents_bs = both.query_documents_bt;
  both.query_positions_bt = joined(first.query_positions_bt, second.query_positions_bt);
  both.key_positions_bs = both.query_positions_bt;
  EXPECT_LT(relative_error(run(spec, in.to(at::kFloat), both).out_bhte,
                           run(spec, in, both, Path::reference).out_bhte),
            1e-5);
}

// Kernels (a2, a1, 0) and (0, b1, b2) of one query are KV shifting (spec 3.2).
TEST(Mixing, KvShiftingIsASpecialCase) {
  AttentionSpec shifting = small_spec(4, 4), convolving = shifting;
  shifting.kv_shift = {.keys = true, .values = true};
  convolving.multi_token = {.before = {1, 3}, .after = {1, 3}};
  AttentionInputs in = random_inputs(shifting, 2, 83).to(at::kFloat);
  const at::Tensor shifted = run(shifting, in).out_bhte;
  const at::Tensor keys = in.tensors.key_shift_g2, values = in.tensors.value_shift_g2,
                   zero = at::zeros({4});
  in.tensors = {};
  in.tensors.kernel_before_hqk =
      at::stack({keys.select(1, 1), keys.select(1, 0), zero}, 1).unsqueeze(1);
  in.tensors.kernel_after_hqk =
      at::stack({zero, values.select(1, 0), values.select(1, 1)}, 1).unsqueeze(1);
  EXPECT_LT(relative_error(run(convolving, in).out_bhte, shifted), 1e-5);
}

// 13.1: kernels and matrices start as the identity.
TEST(Mixing, IdentitiesEqualPlainAttention) {
  const AttentionSpec spec = joined_spec();
  AttentionInputs in = random_inputs(spec, 2, 97).to(at::kFloat);
  in.tensors.kernel_before_hqk = start_kernel(KernelStart::identity, 0.0, 4, {6, 11});
  in.tensors.kernel_after_hqk = start_kernel(KernelStart::identity, 0.0, 4, {3, 4});
  in.tensors.mix_before_noi = at::eye(4).unsqueeze(0);
  in.tensors.mix_after_nio = at::eye(2).expand({2, 2, 2});
  AttentionInputs plain = in;
  plain.tensors = {};
  EXPECT_LT(relative_error(run(spec, in).out_bhte, run(small_spec(), plain).out_bhte), 1e-6);
}

// 13.7: one 1 in the kernel takes logits of earlier queries and keys; on another path and here.
TEST(Mixing, AnImpulseEqualsTheReference) {
  AttentionSpec spec = small_spec();
  spec.multi_token.before = {4, 5};
  AttentionInputs in = random_inputs(spec, 1, 70);
  for (const auto& [row, column] : {std::pair{0, 0}, {0, 4}, {2, 1}, {3, 3}}) {
    in.tensors.kernel_before_hqk = at::zeros({4, 4, 5}, at::kDouble);
    in.tensors.kernel_before_hqk.select(1, row).select(1, column).fill_(1.0);
    EXPECT_LT(relative_error(run(spec, in.to(at::kFloat)).out_bhte,
                             run(spec, in, {}, Path::reference).out_bhte),
              1e-5);
  }
}

TEST(Mixing, ShortTextsAndOneQueryWork) {
  for (const auto& [queries, keys] :
       {std::pair<int64_t, int64_t>{1, 1}, {2, 2}, {1, 50}, {8, 65}, {0, 5}}) {
    const AttentionSpec spec = joined_spec();
    const AttentionInputs in = random_inputs(spec, 1, queries, keys);
    const at::Tensor got = run(spec, in.to(at::kFloat)).out_bhte,
                     truth = run(spec, in, {}, Path::reference).out_bhte;
    EXPECT_EQ(got.sizes(), truth.sizes());
    if (queries == 0) continue;
    EXPECT_LT(relative_error(got, truth), 1e-5) << queries << " of " << keys;
  }
}

TEST(Mixing, IsRefusedByNameWhereThereIsNoKernel) {
  const auto refused = [](const AttentionSpec& spec, at::ScalarType dtype,
                          const std::string& what) {
    const AttentionInputs in = random_inputs(spec, 1, 6).to(dtype);
    EXPECT_ERROR(UnsupportedError, run(spec, in), "fused", what);
    EXPECT_EQ(run(spec, in, {}, Path::automatic).path.name, PathName::reference);
  };
  refused(joined_spec(), at::kDouble, "Double");
  AttentionSpec spec = joined_spec();
  spec.multi_token.before = {9, 3};
  refused(spec, at::kFloat, "9 x 3");
  spec = joined_spec();
  spec.focus = {.gate = FocusSpec::Gate::log, .groups = 4, .top_k = 1, .window = 2};
  spec.focus.epsilon = 1e-13;
  refused(spec, at::kFloat, "epsilon");
  spec.focus = {.gate = FocusSpec::Gate::straight_through, .groups = 22, .top_k = 1, .window = 2};
  refused(spec, at::kFloat, "straight_through with more than 21 groups");
  spec = joined_spec();
  spec.head_dim = 12;
  refused(spec, at::kFloat, "multiple of 8");
}

}  // namespace
}  // namespace fovea::mixing_test
