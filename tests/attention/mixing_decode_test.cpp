// The decoding kernels of mixed pairs behind attention() and the cache.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "fovea/attention/decode/cached_attention.h"
#include "fovea/kernels/backend.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/gradcheck.h"

namespace fovea::mixing_decode_test {
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
  for (auto [name, spec] : all_specs()) {
    if (!spec.multi_token.before.active() && !spec.multi_token.after.active() &&
        spec.head_mix == HeadMixSpec{})
      continue;
    if (spec.streaming.active() || spec.longformer.active()) continue;
    all.push_back({name, spec});
  }
  AttentionSpec spec = joined_spec();
  all.push_back({"joined", spec});
  spec.kv_shift = {.keys = true, .values = true};
  spec.multi_token.renormalise = spec.sink_logit = true;
  spec.soft_cap = 3.0;
  all.push_back({"shifted, renormalised, capped, with a sink logit", spec});
  spec = joined_spec();
  spec.multi_token.equation = MultiTokenSpec::Equation::eq4;
  spec.mask.window = 20, spec.mask.sinks = 3;
  all.push_back({"eq4 in a window", spec});
  spec = joined_spec();
  spec.temperature.kind = TemperatureSpec::Kind::learned;
  spec.mask.window = 70;
  all.push_back({"temperature in a window", spec});
  for (const NamedSpec& focused : focused_specs(joined_spec()))
    if (focused.spec.mask.causal) all.push_back(focused);
  return all;
}

bool read_in_place(const AttentionResult& result) {
  return result.path.name == PathName::fused &&
         result.path.reason.kind == PathReason::Kind::few_queries;
}

AttentionResult attend(const AttentionSpec& spec, const AttentionInputs& in,
                       Path path = Path::fused) {
  return attention(spec, in.q, in.k, in.v, in.tensors, {.want_lse = true}, path);
}

TEST(MixingDecode, IsTakenForFewQueriesOfOneDocumentWithoutGradient) {
  const AttentionSpec spec = joined_spec();
  const auto taken = [&](int64_t queries, bool gradient, const AttentionContext& context = {}) {
    AttentionInputs in = random_inputs(spec, 1, queries, 90).to(at::kFloat);
    if (gradient) in = in.with_gradient();
    const AttentionResult result =
        attention(spec, in.q, in.k, in.v, in.tensors, context, Path::fused);
    if (read_in_place(result)) {
      EXPECT_EQ(result.path.isa, kernels::cpu().isa<kernels::MixingDecode<float>>());
    }
    return read_in_place(result);
  };
  EXPECT_TRUE(taken(1, false));
  EXPECT_TRUE(taken(16, false));
  EXPECT_FALSE(taken(17, false));
  EXPECT_FALSE(taken(1, true));
  EXPECT_FALSE(taken(9, false, {.want_stats = true}));
  AttentionInputs packed = random_inputs(spec, 1, 12).to(at::kFloat);
  EXPECT_FALSE(read_in_place(attention(spec, packed.q, packed.k, packed.v, packed.tensors,
                                       packed_context({5, 7}), Path::fused)));
}

TEST(MixingDecode, EqualsTheFloat64ReferenceForEverySpec) {
  for (const auto& [name, spec] : joined_specs()) {
    for (const auto& [batch, queries, keys] :
         {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {3, 4, 97}, {2, 9, 300}}) {
      const AttentionInputs in = random_inputs(spec, batch, queries, keys);
      const AttentionResult got = attend(spec, in.to(at::kFloat)),
                            truth = attend(spec, in, Path::reference);
      EXPECT_TRUE(read_in_place(got)) << name;
      EXPECT_LT(relative_error(got.out_bhte, truth.out_bhte), 1e-5) << name;
      EXPECT_LT(relative_error(got.lse_bht, truth.lse_bht), 1e-5) << name;
    }
  }
}

// M-15: sums in float32, so the error is that of rounded inputs and results.
TEST(MixingDecode, BFloat16HasAtMostTwiceTheErrorOfPlainTensorCode) {
  for (const auto& [name, spec] : joined_specs()) {
    if (spec.head_output.active()) continue;  // after the kernels
    const AttentionInputs in = random_inputs(spec, 1, 8, 300).to(at::kBFloat16);
    const at::Tensor truth = attend(spec, in.to(at::kDouble), Path::reference).out_bhte;
    const AttentionResult got = attend(spec, in);
    EXPECT_TRUE(read_in_place(got)) << name;
    EXPECT_LT(relative_error(got.out_bhte, truth),
              2 * relative_error(attend(spec, in, Path::reference).out_bhte, truth))
        << name;
  }
}

// Spec 3.6, 13.4: one token after the other, or some together.
TEST(MixingDecode, ACacheGivesTheRowsOfTheWholeText) {
  constexpr int64_t kText = 110;
  for (const auto& [name, spec] : joined_specs()) {
    const AttentionInputs in = random_inputs(spec, 2, kText).to(at::kFloat);
    const at::Tensor whole = attend(spec, in).out_bhte;
    AttentionCache cache(cache_streams(spec, at::kFloat), 2, kText);
    for (int64_t at = 0, n = 1; at < kText; at += n) {
      n = std::min<int64_t>(at % 9 == 0 ? 5 : 1, kText - at);
      const AttentionInputs some = in.tokens(at, n);
      const AttentionResult got =
          cached_attention(spec, cache, some.q, some.k, some.v, some.tensors, Path::automatic);
      ASSERT_EQ(got.out_bhte.size(2), n) << name;
      ASSERT_LT(relative_error(got.out_bhte, whole.narrow(2, at, n)), 1e-5)
          << name << ", token " << at;
    }
  }
}

// 13.3: to the bit, NaN and infinity included.
TEST(MixingDecode, RequestsOfUnequalLengthsEqualEachAlone) {
  AttentionSpec spec = joined_spec();
  const AttentionInputs in = random_inputs(spec, 2, 4, 120).to(at::kFloat);
  const at::Tensor lengths = at::tensor({90, 120}, at::kLong);
  AttentionContext context;
  context.key_lengths_b = lengths;
  in.k[0].narrow(1, 90, 30).fill_(std::numeric_limits<float>::quiet_NaN());
  in.v[0].narrow(1, 90, 30).fill_(std::numeric_limits<float>::quiet_NaN());
  const AttentionResult both = attention(spec, in.q, in.k, in.v, in.tensors, context, Path::fused);
  EXPECT_TRUE(read_in_place(both));
  for (int64_t b = 0; b < 2; ++b) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, b, 1); };
    const int64_t keys = lengths[b].item<int64_t>();
    const at::Tensor alone = attention(spec, part(in.q), part(in.k).narrow(2, 0, keys),
                                       part(in.v).narrow(2, 0, keys), in.tensors, {}, Path::fused)
                                 .out_bhte;
    EXPECT_TRUE(at::equal(part(both.out_bhte), alone));
  }
}

}  // namespace
}  // namespace fovea::mixing_decode_test
