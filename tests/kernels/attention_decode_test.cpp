// The decoding kernels against scalar loops in float64. ForcedIsa (attention_test.cpp) runs these
// tests on every instruction set, too.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <omp.h>

#include <functional>

#include "tests/support/expect_error.h"
#include "tests/support/pointwise_problem.h"

namespace fovea::attention_decode_test {
namespace {

using namespace fovea::testing;

template <class T>
void expect_truth(const PointwiseSettings& settings, const std::string& what) {
  PointwiseProblem<T> problem(settings);
  const PointwiseNumbers truth = problem.by_formula(), got = problem.by_decode();
  const double bound = std::is_same_v<T, float> ? 1e-5 : 1e-2;
  EXPECT_LT(numbers_error(got.out, truth.out), bound) << what;
  EXPECT_LT(numbers_error(got.lse, truth.lse), bound) << what;
}

PointwiseSettings few_queries(int64_t queries, int64_t keys, int64_t width = 24) {
  return {.sizes = {2, 4, 2, queries, keys, width, width}};
}

TEST(AttentionKernels, DecodeEqualsTheFormulaForEveryStage) {
  const auto check = [](const std::string& name,
                        const std::function<void(PointwiseSettings&)>& change) {
    for (const int64_t queries : {1, 3}) {
      PointwiseSettings s = few_queries(queries, 700);
      change(s);
      expect_truth<float>(s, name);
      expect_truth<BFloat16>(s, name);
    }
  };
  check("plain", [](auto&) {});
  check("full", [](auto& s) { s.mask.causal = false; });
  check("window", [](auto& s) { s.mask.window = 99; });
  check("window with sinks", [](auto& s) { s.mask.window = 40, s.mask.sinks = 3; });
  check("window both ways", [](auto& s) { s.mask = {.causal = false, .window = 50}; });
  check("tau", [](auto& s) { s.tau = true; });
  check("soft-cap", [](auto& s) { s.soft_cap = 1.5; });
  check("alibi", [](auto& s) { s.alibi = true; });
  check("bias", [](auto& s) { s.bias = true; });
  check("sink", [](auto& s) { s.sink = true; });
  using Form = kernels::PairGate::Form;
  for (const Form form :
       {Form::weight, Form::capped_weight, Form::sigmoid_weight, Form::sigmoid_logit}) {
    const kernels::PairGate gate{
        .form = form, .offset = 0.01f, .window = 30, .sinks = 2, .columns = 20};
    check("gate", [&](auto& s) { s.gate = gate; });
    check("gate, window with sinks", [&](auto& s) {
      s.gate = gate, s.mask.window = 400, s.mask.sinks = 5, s.tau = s.sink = true, s.soft_cap = 1.5;
    });
  }
  check("everything", [](auto& s) {
    s.tau = s.alibi = s.bias = s.sink = true;
    s.soft_cap = 2.0, s.mask.window = 600, s.mask.sinks = 2;
  });
}

TEST(AttentionKernels, DecodeEqualsTheFormulaForOddLengthsAndEveryWidth) {
  for (const int64_t keys : {1, 2, 15, 17, 63, 65, 511, 513, 1025}) {
    const PointwiseSettings s = few_queries(1, keys);
    expect_truth<float>(s, std::to_string(keys) + " keys");
    expect_truth<BFloat16>(s, std::to_string(keys) + " keys");
  }
  for (const int64_t width : {8, 40, 64, 80, 128, 200, 256}) {
    PointwiseSettings s = few_queries(2, 100, width);
    s.sizes.value_dim = 264 - width;
    s.scale = 1.0 / std::sqrt(static_cast<double>(width));
    expect_truth<float>(s, "width " + std::to_string(width));
    expect_truth<BFloat16>(s, "width " + std::to_string(width));
  }
}

TEST(AttentionKernels, DecodeTakesAnyNumberOfRows) {
  for (const int64_t queries : {2, 5, 9, 20}) {
    PointwiseSettings s = few_queries(queries, 150, 16);
    s.sizes.heads = 6;
    expect_truth<float>(s, std::to_string(queries) + " queries");
    expect_truth<BFloat16>(s, std::to_string(queries) + " queries");
  }
}

TEST(AttentionKernels, DecodeFollowsLogitsThatGrow) {
  PointwiseProblem<float> problem({.sizes = {1, 1, 1, 1, 900, 16, 16}, .scale = 0.25});
  for (size_t n = 0; n < problem.keys().size(); ++n)
    problem.keys()[n] *= static_cast<float>(n / 16);
  const PointwiseNumbers truth = problem.by_formula(), got = problem.by_decode();
  EXPECT_GT(truth.lse[0], 300.0);
  EXPECT_LT(numbers_error(got.out, truth.out), 1e-4);
  EXPECT_LT(numbers_error(got.lse, truth.lse), 1e-6);
}

TEST(AttentionKernels, DecodeGivesTheSameBitsForAnyNumberOfThreads) {
  const int before = omp_get_max_threads();
  std::vector<PointwiseNumbers> runs;
  for (const int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    runs.push_back(PointwiseProblem<float>(few_queries(2, 4000, 32)).by_decode());
  }
  omp_set_num_threads(before);
  EXPECT_EQ(runs[1].out, runs[0].out);
  EXPECT_EQ(runs[2].out, runs[0].out);
  EXPECT_EQ(runs[2].lse, runs[0].lse);
}

// Requests of unequal lengths: what stands in the cache behind a request's keys does not matter.
TEST(AttentionKernels, DecodeReadsNothingBehindTheKeysOfARow) {
  const std::vector<int64_t> lengths{600, 37};
  std::vector<PointwiseNumbers> runs;
  for (const float rest : {1.0f, std::numeric_limits<float>::quiet_NaN()}) {
    PointwiseProblem<float> problem(few_queries(1, 1000, 16));
    std::vector<RowVisits> seen;
    for (const int64_t length : lengths)
      seen.push_back({.position = length - 1, .near = {0, length, 0}, .far = {}});
    for (std::vector<float>* x : {&problem.keys(), &problem.values()}) {
      for (size_t b = 0; b < 2; ++b)
        std::fill(x->begin() + static_cast<int64_t>(b * 32000) + lengths[b] * 32,
                  x->begin() + static_cast<int64_t>((b + 1) * 32000), rest);
    }
    problem.run_decode(seen);
    runs.push_back({.out = problem.outputs()});
  }
  EXPECT_EQ(runs[0].out, runs[1].out);
  EXPECT_EQ(runs[0].out[0], runs[0].out[0]);
}

TEST(AttentionKernels, DecodeOfARowWithoutKeysIsZero) {
  PointwiseProblem<float> problem(few_queries(1, 70, 16));
  problem.run_decode({RowVisits{}, RowVisits{}});
  for (const double x : problem.outputs()) EXPECT_EQ(x, 0.0);
}

TEST(AttentionKernels, DecodeRefusesRowsThatDoNotFit) {
  PointwiseProblem<float> problem(few_queries(1, 70, 16));
  EXPECT_ERROR(ShapeError, problem.run_decode({RowVisits{}}), "2 rows", "1");
  const RowVisits beyond{.position = 70, .near = {0, 71, 0}, .far = {}};
  EXPECT_ERROR(ShapeError, problem.run_decode({beyond, beyond}), "70", "71");
}

}  // namespace
}  // namespace fovea::attention_decode_test
