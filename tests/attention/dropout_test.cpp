// Counter-based dropout on the weights (seam 6 of the design): a pure function of seed, layer,
// head, i and j.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "fovea/attention/attention.h"
#include "fovea/kernels/common/dropout.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/gradcheck.h"

namespace fovea::dropout_test {
namespace {

using namespace fovea::testing;

AttentionSpec dropping(double p) {
  AttentionSpec spec = small_spec(2, 1, 8);
  spec.dropout = p;
  return spec;
}

AttentionContext training(uint64_t seed, int64_t layer = 0) {
  AttentionContext context;
  context.training = true;
  context.dropout_seed = seed;
  context.layer = layer;
  return context;
}

at::Tensor run(const AttentionSpec& spec, const AttentionInputs& in,
               const AttentionContext& context) {
  return attention(spec, in.q, in.k, in.v, in.tensors, context).out_bhte;
}

TEST(Dropout, ActsOnlyInTraining) {
  const AttentionInputs in = random_inputs(dropping(0.5), 2, 12);
  EXPECT_TRUE(run(dropping(0.5), in, {}).equal(run(dropping(0.0), in, {})));
  EXPECT_FALSE(run(dropping(0.5), in, training(3)).equal(run(dropping(0.0), in, {})));
}

TEST(Dropout, ScalesKeptWeightsAndZeroesTheOthersByTheCounter) {
  const double p = 0.3;
  const AttentionSpec spec = dropping(p);
  const int64_t t = 21;
  AttentionInputs in = random_inputs(spec, 2, t);
  in.v = at::eye(t, at::kDouble)
             .expand({2, 1, t, t})
             .contiguous();  // the output is then the matrix of weights
  AttentionSpec matrix = spec;
  matrix.value_dim = t;
  const at::Tensor kept = run(matrix, in, training(11, 3));
  matrix.dropout = 0.0;
  const at::Tensor all = run(matrix, in, {});
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t i = 0; i < t; ++i)
        for (int64_t j = 0; j <= i; ++j) {
          const DropoutStream stream{mix_seed(11, static_cast<uint64_t>(b)), 3,
                                     static_cast<uint32_t>(h)};
          const double factor =
              dropout_keeps(stream, static_cast<float>(p), i, j) ? 1.0 / (1.0 - p) : 0.0;
          EXPECT_NEAR(kept[b][h][i][j].item<double>(), factor * all[b][h][i][j].item<double>(),
                      1e-7);
        }
}

TEST(Dropout, AnyTilingOfTheQueriesDropsTheSameEntries) {
  const AttentionSpec spec = dropping(0.4);
  const AttentionInputs in = random_inputs(spec, 1, 16);
  const at::Tensor whole = run(spec, in, training(5));
  // The last n queries against all keys up to them: a tile of rows.
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 3}, {3, 10}, {10, 16}}) {
    AttentionInputs tile = in;
    tile.q = in.q.narrow(2, begin, end - begin);
    tile.k = in.k.narrow(2, 0, end);
    tile.v = in.v.narrow(2, 0, end);
    EXPECT_LT(relative_error(run(spec, tile, training(5)), whole.narrow(2, begin, end - begin)),
              1e-13);
  }
}

TEST(Dropout, DiffersBySeedLayerHeadAndBatchRow) {
  const AttentionSpec spec = dropping(0.5);
  AttentionInputs in = random_inputs(spec, 1, 12);
  in.q =
      at::ones({2, 2, 12, 8},
               at::kDouble);  // same q everywhere, so that only dropout tells heads and rows apart
  in.k = in.k.expand({2, 1, 12, 8}).contiguous();
  in.v = in.v.expand({2, 1, 12, 8}).contiguous();
  const at::Tensor out = run(spec, in, training(1));
  EXPECT_FALSE(out.select(0, 0).equal(out.select(0, 1)));
  EXPECT_FALSE(out.select(1, 0).equal(out.select(1, 1)));
  EXPECT_FALSE(out.equal(run(spec, in, training(2))));
  EXPECT_FALSE(out.equal(run(spec, in, training(1, 1))));
  EXPECT_TRUE(out.equal(run(spec, in, training(1))));
}

TEST(Dropout, KeepsTheExpectedOutput) {
  const AttentionSpec spec = dropping(0.5);
  const AttentionInputs in = random_inputs(spec, 1, 6);
  at::Tensor sum = at::zeros({1, 2, 6, 8}, at::kDouble);
  const int draws = 4000;
  for (int seed = 0; seed < draws; ++seed)
    sum += run(spec, in, training(static_cast<uint64_t>(seed)));
  // A row of weights P has deviation sqrt(sum P^2 v^2) <= |v| ~ 3; 4000 draws bring it to 0.05; 5
  // deviations.
  EXPECT_LT((sum / draws - run(spec, in, {})).abs().max().item<double>(), 0.25);
}

TEST(Dropout, GradientUsesTheSameMask) {
  const AttentionSpec spec = dropping(0.4);
  const AttentionInputs in = random_inputs(spec, 1, 6).with_gradient();
  expect_gradients(
      [&](const auto&) {
        return (run(spec, in, training(9)) * random_normal({1, 2, 6, 8}, 5)).sum();
      },
      in.leaves(), "dropout");
}

}  // namespace
}  // namespace fovea::dropout_test
