// Differential attention: golden constants, the two-call form against one matrix, GQA, refusals
// (spec 1, 13.6). Scalar loops, gradients, packing, causality and decoding are in the tests of
// every stage.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/differential.h"

#include <gtest/gtest.h>

#include "fovea/attention/cache/cache.h"
#include "fovea/attention/mechanisms/head_output.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradcheck.h"

namespace fovea::differential_test {
namespace {

using namespace fovea::testing;

AttentionSpec differential_spec(int64_t heads, int64_t kv_heads, int64_t head_dim) {
  AttentionSpec spec = small_spec(heads, kv_heads, head_dim);
  spec.differential = true;
  return spec;
}

// 1.2 step 4, 13.6: the depth counts from 0 (M-18).
TEST(Differential, LambdaInitHasTheGoldenValues) {
  EXPECT_NEAR(lambda_init(0), 0.2, 1e-12);
  EXPECT_NEAR(lambda_init(1), 0.355509, 1e-6);
  EXPECT_NEAR(lambda_init(2), 0.470713, 1e-6);
  EXPECT_NEAR(lambda_init(11), 0.777870, 1e-6);
  EXPECT_NEAR(lambda_init(23), 0.799395, 1e-6);
}

// 13.6: (A1 - lambda A2) v as one matrix equals the two calls; its rows sum to 1 - lambda.
TEST(Differential, TheTwoCallsEqualTheMatrixWhoseRowsSumToOneMinusLambda) {
  AttentionSpec spec = differential_spec(4, 4, 8);
  spec.depth = 2;
  const AttentionInputs in = random_inputs(spec, 2, 17);
  const std::vector<int64_t> heads{0, 1};
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < 17; ++i) rows.push_back(i);
  const at::Tensor matrix = attention_rows(spec, in.q, in.k, in.tensors, {}, heads, rows);
  EXPECT_EQ(matrix.sizes(), at::IntArrayRef({2, 2, 17, 17}));
  const AttentionResult result = attention(spec, in.q, in.k, in.v, in.tensors);
  EXPECT_LT(relative_error(at::matmul(matrix.to(at::kDouble), in.v), result.out_bhte), 1e-6);
  const double lambda = differential_lambda(spec, in.tensors).item<double>();
  EXPECT_LT((matrix.sum(-1) - (1.0 - lambda)).abs().max().item<double>(), 1e-6);
  EXPECT_LT(matrix.min().item<double>(), 0.0);
}

// 1.4: under GQA the two maps of a head keep distinct keys.
TEST(Differential, MapsOfAHeadReadNeighbouringKeyHeads) {
  const AttentionSpec grouped = differential_spec(8, 4, 8), full = differential_spec(8, 8, 8);
  const AttentionInputs in = random_inputs(grouped, 1, 13);
  const at::Tensor keys = at::tensor(std::vector<int64_t>{0, 1, 0, 1, 2, 3, 2, 3}),
                   values = at::tensor(std::vector<int64_t>{0, 0, 1, 1});
  EXPECT_LT(relative_error(attention(grouped, in.q, in.k, in.v, in.tensors).out_bhte,
                           attention(full, in.q, in.k.index_select(1, keys),
                                     in.v.index_select(1, values), in.tensors)
                               .out_bhte),
            1e-13);
}

// 1.3: keys and values take the bytes of the baseline's, and nothing else is kept.
TEST(Differential, TheCacheIsAsLargeAsTheBaselines) {
  const AttentionCache plain(cache_streams(small_spec(8, 4, 16), at::kFloat), 2, 40),
      two(cache_streams(differential_spec(8, 4, 16), at::kFloat), 2, 40);
  EXPECT_EQ(two.bytes(), plain.bytes());
}

TEST(Differential, ImpossibleSettingsAreRefusedByName) {
  EXPECT_ERROR(ConfigError, differential_spec(3, 1, 8).check(), "differential", "3 heads");
  EXPECT_ERROR(ConfigError, differential_spec(4, 1, 8).check(), "differential", "1 kv_heads");
  AttentionSpec spec = differential_spec(4, 2, 8);
  spec.multi_token.before = {2, 3};
  EXPECT_ERROR(UnsupportedError, spec.check(), "differential", "multi_token");
  spec = differential_spec(4, 2, 8);
  const AttentionInputs in = random_inputs(spec, 1, 5);
  EXPECT_ERROR(ShapeError, attention(spec, in.q, in.k, in.v), "lambda", "none");
  EXPECT_ERROR(ShapeError, attention(spec, in.q, in.k, in.k, in.tensors), "v", "[1, 1, 5, 16]");
}

}  // namespace
}  // namespace fovea::differential_test
