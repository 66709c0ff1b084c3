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

namespace fovea {
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

}  // namespace
}  // namespace fovea
