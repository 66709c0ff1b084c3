// Gates of Focus that leave float32's range: the formula's numbers, whatever the strength and the
// logits (spec 11.2). ForcedIsa (attention_test.cpp) runs these tests on every instruction set,
// too.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "fovea/base/error.h"
#include "tests/support/pointwise_problem.h"

namespace fovea::gate_range_test {
namespace {

using namespace fovea::testing;

// logsig: sigma(strength (agreement - 1/2)), with agreements from 0 to 1.
PointwiseSettings steep(int64_t tokens, float strength) {
  PointwiseSettings s{.sizes = {1, 2, 1, tokens, tokens, 16, 8}, .scale = 1.0};
  s.gate = {.form = kernels::PairGate::Form::sigmoid_weight,
            .offset = -0.5f * strength,
            .least = -0.5f * strength,
            .window = 1,
            .columns = 1};
  return s;
}

template <class T>
PointwiseProblem<T> problem_of(const PointwiseSettings& s, float strength, float largest_key) {
  PointwiseProblem<T> problem(s);
  for (size_t n = 0; n < problem.query_gates().size(); ++n) {
    problem.query_gates()[n] = strength;
    problem.key_gates()[n] = static_cast<float>(n % 7) / 6.0f;
  }
  for (size_t n = 0; n < problem.keys().size(); ++n) {  // every fifth key leads
    const float factor = n / 16 % 5 == 0 ? largest_key : 0.5f;
    from_float(to_float(problem.keys()[n]) * factor, problem.keys()[n]);
  }
  return problem;
}

template <class T>
void expect_truth(int64_t tokens, float strength, float largest_key, double forward,
                  double backward) {
  const PointwiseSettings s = steep(tokens, strength);
  PointwiseProblem<T> problem = problem_of<T>(s, strength, largest_key);
  const PointwiseNumbers truth = problem.by_formula(), got = problem.by_kernels(),
                         decoded = problem.by_decode();
  const std::string what =
      fmt::format("{} tokens, strength {}, keys x {}", tokens, strength, largest_key);
  EXPECT_LT(numbers_error(got.out, truth.out), forward) << what;
  EXPECT_LT(numbers_error(got.lse, truth.lse), forward) << what;
  EXPECT_LT(numbers_error(decoded.out, truth.out), forward) << what;
  EXPECT_LT(numbers_error(decoded.lse, truth.lse), forward) << what;
  EXPECT_LT(numbers_error(got.dq, truth.dq), backward) << what;
  EXPECT_LT(numbers_error(got.dk, truth.dk), backward) << what;
  EXPECT_LT(numbers_error(got.dv, truth.dv), backward) << what;
  EXPECT_LT(numbers_error(got.dgate_query, truth.dgate_query), backward) << what;
  EXPECT_LT(numbers_error(got.dgate_key, truth.dgate_key), backward) << what;
}

TEST(AttentionKernels, GatesOfAnyStrengthEqualTheFormula) {
  for (const int64_t tokens : {2, 5, 70}) {
    for (const float strength : {10.0f, 79.0f, 81.0f, 200.0f, 1e4f}) {
      for (const float largest_key : {1.0f, 10.0f, 40.0f}) {
        expect_truth<float>(tokens, strength, largest_key, 1e-4, 1e-3);
        expect_truth<BFloat16>(tokens, strength, largest_key, 2e-2, 6e-2);
      }
    }
  }
}

// The gate takes e^-100 where the distant logit leads by 100: both tokens weigh the same.
TEST(AttentionKernels, AGateThatCancelsADistantLogitLeavesBothTokens) {
  PointwiseSettings s = steep(2, 200.0f);
  s.sizes = {1, 1, 1, 2, 2, 8, 8};
  PointwiseProblem<float> problem(s);
  problem.queries().assign(16, 0.0f);
  problem.keys().assign(16, 0.0f);
  problem.queries()[8] = 1.0f;
  problem.keys()[0] = 100.0f;
  problem.values().assign(8, 2.0f);
  problem.values().resize(16, 4.0f);
  std::ranges::fill(problem.query_gates(), 200.0f);
  std::ranges::fill(problem.key_gates(), 0.0f);
  for (const PointwiseNumbers& got : {problem.by_kernels(), problem.by_decode()}) {
    EXPECT_NEAR(got.out[8], 3.0, 1e-5);
    EXPECT_NEAR(got.lse[1], std::log(2.0), 1e-5);
  }
}

}  // namespace
}  // namespace fovea::gate_range_test
