// Maps and statistics (seam 7 of the design).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "fovea/attention/attention.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"
#include "tests/support/scalar_attention.h"

namespace fovea::telemetry_test {
namespace {

using namespace fovea::testing;

TEST(AttentionRows, AreTheWeightsOfTheChosenHeadsAndQueries) {
  const std::vector<int64_t> queries{7, 1, 18};
  for (const auto& [name, spec] : all_specs()) {
    const std::vector<int64_t> heads{spec.output_heads() - 1, 0};
    const AttentionInputs in = random_inputs(spec, 2, 19);
    const AttentionContext context = packed_context({8, 11});
    const at::Tensor rows = attention_rows(spec, in.q, in.k, in.tensors, context, heads, queries);
    const at::Tensor all = scalar_attention(spec, in, context).weights;
    EXPECT_EQ(rows.scalar_type(), at::kFloat);
    EXPECT_LT(
        relative_error(rows,
                       all.index_select(1, at::tensor(heads)).index_select(2, at::tensor(queries))),
        1e-6)
        << name;
  }
}

TEST(AttentionRows, RefuseHeadsAndQueriesThatDoNotExist) {
  const AttentionSpec spec = small_spec();
  const AttentionInputs in = random_inputs(spec, 1, 3);
  const std::vector<int64_t> first{0}, fourth{4};
  EXPECT_ERROR(ShapeError, attention_rows(spec, in.q, in.k, {}, {}, fourth, first), "heads", "4");
  EXPECT_ERROR(ShapeError, attention_rows(spec, in.q, in.k, {}, {}, first, fourth), "queries", "4");
}

TEST(AttentionStats, EqualTheirDefinitionFromTheWeights) {
  const AttentionSpec spec = small_spec();
  const AttentionInputs in = random_inputs(spec, 2, 12);
  const AttentionContext context = packed_context({5, 7});
  const AttentionStats stats = attention_stats(spec, in.q, in.k, {}, context);
  const at::Tensor p = scalar_attention(spec, in, context).weights;
  at::Tensor entropy = at::zeros({4}, at::kDouble), largest = entropy.clone(),
             sink = entropy.clone();
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t h = 0; h < 4; ++h)
      for (int64_t i = 0; i < 12; ++i) {
        double top = 0.0;
        for (int64_t j = 0; j <= i; ++j) {
          const double w = p[b][h][i][j].item<double>();
          if (w > 0.0) entropy[h] -= w * std::log(w) / 24.0;
          top = std::max(top, w);
        }
        largest[h] += top / 24.0;
        sink[h] += p[b][h][i][i < 5 ? 0 : 5].item<double>() / 24.0;
      }
  EXPECT_LT(relative_error(stats.entropy_h, entropy), 1e-6);
  EXPECT_LT(relative_error(stats.largest_weight_h, largest), 1e-6);
  EXPECT_LT(relative_error(stats.sink_mass_h, sink), 1e-6);
}

// Focal Attention's effect, as telemetry shows it: a lower temperature lowers the entropy of every
// head.
TEST(AttentionStats, LowerTemperatureHasLowerEntropy) {
  AttentionSpec plain = small_spec(), focal = small_spec();
  focal.temperature.value = 0.4;
  const AttentionInputs in = random_inputs(plain, 2, 40);
  EXPECT_TRUE(
      (attention_stats(focal, in.q, in.k).entropy_h < attention_stats(plain, in.q, in.k).entropy_h)
          .all()
          .item<bool>());
}

// The kernels count as they go; dropout does not act on what they count.
TEST(AttentionStats, OfTheFusedKernelsAreThoseOfTheReference) {
  for (auto [name, spec] : all_specs()) {
    if (reference_only(spec)) continue;
    if (spec.value_dim > 0) spec.value_dim = 24;
    spec.dropout = 0.3;
    for (AttentionContext context : {AttentionContext{}, packed_context({30, 41, 90})}) {
      context.want_stats = context.training = true;
      const AttentionInputs in = random_inputs(spec, 2, 161);
      const AttentionStats truth = attention_stats(spec, in.q, in.k, in.tensors, context);
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        const AttentionInputs x = in.to(dtype).with_gradient();
        const AttentionResult got = attention(spec, x.q, x.k, x.v, x.tensors, context, Path::fused);
        const double bound = dtype == at::kFloat ? 1e-5 : 1e-2;
        EXPECT_LT(relative_error(got.stats.entropy_h, truth.entropy_h), bound) << name;
        EXPECT_LT(relative_error(got.stats.largest_weight_h, truth.largest_weight_h), bound)
            << name;
        EXPECT_LT(relative_error(got.stats.sink_mass_h, truth.sink_mass_h), bound) << name;
        EXPECT_TRUE(gradients(got.out_bhte.sum(), x.leaves())[0].defined());
      }
    }
  }
}

TEST(AttentionStats, OfRowsWithLogitsThatGrowAreThoseOfTheReference) {
  const AttentionSpec spec = small_spec(2, 1, 16);
  AttentionInputs in = random_inputs(spec, 1, 300);
  in.k = in.k * at::arange(300, in.k.options()).reshape({300, 1});  // exact maxima are needed
  AttentionContext context;
  context.want_stats = true;
  const AttentionStats truth = attention_stats(spec, in.q, in.k);
  const AttentionInputs x = in.to(at::kFloat);
  const AttentionStats got = attention(spec, x.q, x.k, x.v, {}, context, Path::fused).stats;
  EXPECT_LT(relative_error(got.entropy_h, truth.entropy_h), 1e-3);
  EXPECT_LT(relative_error(got.largest_weight_h, truth.largest_weight_h), 1e-3);
}

TEST(AttentionStats, ComeWithEveryPathThatIsAsked) {
  const AttentionSpec spec = small_spec(2, 1, 12);  // no kernel for this width
  AttentionContext context;
  context.want_stats = true;
  const AttentionInputs in = random_inputs(spec, 1, 20);
  const AttentionStats truth = attention_stats(spec, in.q, in.k);
  for (const Path path : {Path::automatic, Path::reference}) {
    const AttentionStats got = attention(spec, in.q, in.k, in.v, {}, context, path).stats;
    EXPECT_LT(relative_error(got.entropy_h, truth.entropy_h), 1e-6);
  }
  EXPECT_FALSE(attention(spec, in.q, in.k, in.v, {}, {}).stats.entropy_h.defined());
}

}  // namespace
}  // namespace fovea::telemetry_test
