// The fused attention kernels against scalar loops in float64, on every instruction set that this
// machine has: the program starts itself with FOVEA_ISA forced.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/pointwise/attention.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cstdlib>

#include "fovea/kernels/common/pair_products.h"
#include "tests/support/every_isa.h"
#include "tests/support/expect_error.h"
#include "tests/support/pointwise_truth.h"

namespace fovea::attention_test {
namespace {

using namespace fovea::testing;

std::string_view isa_name(Isa isa) { return enum_names(isa)[static_cast<size_t>(isa)]; }

TEST(AttentionKernels, EqualTheFormulaForEveryStageAndOddLengths) {
  for (const int64_t tokens : {1, 3, 19, 97}) {
    for (const auto& [name, settings] : every_stage(tokens, 24)) {
      expect_truth<float>(settings, name);
      expect_truth<BFloat16>(settings, name);
    }
  }
}

TEST(AttentionKernels, EqualTheFormulaOverSeveralBlocks) {
  for (const int64_t tokens : {257, 1025}) {
    const PointwiseSettings s{.sizes = {1, 1, 1, tokens, tokens, 16, 8}};
    expect_truth<float>(s, "causal");
    expect_truth<BFloat16>(s, "causal");
  }
}

TEST(AttentionKernels, EqualTheFormulaWithGatesOfEveryWidthOverSeveralBlocks) {
  using Form = kernels::PairGate::Form;
  for (const int64_t columns : {1, 2, 4, 7, 16, 33, 64, 65}) {
    PointwiseSettings s{.sizes = {1, 4, 2, 300, 300, 16, 8}};
    s.gate = {.form = columns % 2 == 0 ? Form::weight : Form::sigmoid_weight,
              .offset = 0.001f,
              .window = 20,
              .sinks = 1,
              .columns = columns};
    expect_truth<float>(s, std::to_string(columns) + " columns");
    expect_truth<BFloat16>(s, std::to_string(columns) + " columns");
  }
  PointwiseSettings s{.sizes = {1, 1, 1, 1025, 1025, 16, 8}};
  s.gate = {.form = Form::weight, .offset = 1e-6f, .window = 128, .sinks = 4, .columns = 8};
  expect_truth<float>(s, "1025 tokens");
  expect_truth<BFloat16>(s, "1025 tokens");
}

TEST(AttentionKernels, AGateOfOneOrWithoutDistantPairsChangesNoBit) {
  PointwiseSettings s{.sizes = {1, 2, 1, 200, 200, 16, 16}};
  const PointwiseNumbers plain = PointwiseProblem<float>(s).by_kernels();
  s.gate = {.form = kernels::PairGate::Form::weight, .window = 200, .columns = 3};
  PointwiseProblem<float> local(s);
  const PointwiseNumbers got = local.by_kernels();
  EXPECT_EQ(got.out, plain.out);
  EXPECT_EQ(got.dk, plain.dk);
  for (const double x : got.dgate_key) EXPECT_EQ(x, 0.0);
  s.gate.window = 1;
  s.gate.offset = 1.0f;
  PointwiseProblem<float> ones(s);
  for (std::vector<float>* x : {&ones.query_gates(), &ones.key_gates()})
    std::ranges::fill(*x, 0.0f);
  EXPECT_EQ(ones.by_kernels().out, plain.out);
}

TEST(AttentionKernels, EqualTheFormulaForEveryWidth) {
  for (const int64_t width : {8, 40, 64, 80, 128, 256}) {
    PointwiseSettings s{.sizes = {1, 2, 2, 66, 66, width, 264 - width}};
    s.scale = 1.0 / std::sqrt(static_cast<double>(width));
    expect_truth<float>(s, "width " + std::to_string(width));
    expect_truth<BFloat16>(s, "width " + std::to_string(width));
  }
}

TEST(AttentionKernels, EqualTheFormulaForQueriesThatAreNotTheKeys) {
  for (const auto& [queries, keys] :
       {std::pair<int64_t, int64_t>{1, 200}, {5, 70}, {70, 133}, {130, 30}}) {
    PointwiseSettings s{.sizes = {1, 6, 2, queries, keys, 16, 40}};
    s.mask.causal = queries <= keys;
    s.dropout = 0.1;
    expect_truth<float>(s, std::to_string(queries) + " queries");
    expect_truth<BFloat16>(s, std::to_string(queries) + " queries");
  }
}

// The reference of a row is the maximum of its first panel; what grows beyond needs the exact one.
TEST(AttentionKernels, SurviveLogitsThatGrowWithTheKeys) {
  PointwiseProblem<float> problem({.sizes = {1, 1, 1, 300, 300, 16, 16}, .scale = 0.25});
  for (size_t n = 0; n < problem.keys().size(); ++n)
    problem.keys()[n] *= static_cast<float>(n / 16);
  const PointwiseNumbers got = problem.by_kernels(), truth = problem.by_formula();
  EXPECT_GT(*std::ranges::max_element(truth.lse), 500.0);
  EXPECT_LT(numbers_error(got.out, truth.out), 1e-4);  // logits of 1000 have errors of 1e-4
  EXPECT_LT(numbers_error(got.lse, truth.lse), 1e-6);
}

TEST(AttentionKernels, GiveTheSameBitsForAnyNumberOfThreads) {
  PointwiseSettings s{.sizes = {2, 4, 2, 700, 700, 32, 32}};
  s.tau = s.bias = s.sink = true;
  s.gate = {.form = kernels::PairGate::Form::weight, .offset = 1e-6f, .window = 50, .columns = 8};
  const int before = omp_get_max_threads();
  std::vector<PointwiseNumbers> runs;
  for (const int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    runs.push_back(PointwiseProblem<float>(s).by_kernels());
  }
  omp_set_num_threads(before);
  for (const PointwiseNumbers& other : {runs[1], runs[2]}) {
    EXPECT_EQ(other.out, runs[0].out);
    EXPECT_EQ(other.dq, runs[0].dq);
    EXPECT_EQ(other.dk, runs[0].dk);
    EXPECT_EQ(other.dv, runs[0].dv);
    EXPECT_EQ(other.dtau, runs[0].dtau);
    EXPECT_EQ(other.dbias, runs[0].dbias);
    EXPECT_EQ(other.dsink, runs[0].dsink);
    EXPECT_EQ(other.dgate_query, runs[0].dgate_query);
    EXPECT_EQ(other.dgate_key, runs[0].dgate_key);
  }
}

TEST(AttentionKernels, LeaveTheModeOfDenormalNumbersAlone) {
  volatile float small = 1e-38f;
  PointwiseProblem<float>(PointwiseSettings{}).by_kernels();
  EXPECT_GT(small * 0.1f, 0.0f);
}

// Some CPUs take hundreds of cycles for a denormal number, so the kernels count them as zero,
// whatever the caller's mode is.
TEST(AttentionKernels, CountDenormalNumbersAsZero) {
  const PointwiseSettings s{.sizes = {1, 2, 1, 70, 70, 16, 16}};
  PointwiseProblem<float> tiny(s), zero(s);
  for (float& x : tiny.values()) x = x > 0.0f ? 1e-39f : -1e-39f;
  for (float& x : zero.values()) x = 0.0f;
  const PointwiseNumbers got = tiny.by_kernels(), truth = zero.by_kernels();
  EXPECT_EQ(got.out, truth.out);
  EXPECT_EQ(got.dq, truth.dq);
  EXPECT_EQ(got.dk, truth.dk);
  for (const double x : got.out) EXPECT_EQ(x, 0.0);
  PointwiseProblem<float> one({.sizes = {1, 2, 1, 1, 70, 16, 16}});
  for (float& x : one.values()) x = 1e-39f;
  for (const double x : one.by_decode().out) EXPECT_EQ(x, 0.0);
}

TEST(AttentionKernels, RefuseWidthsWithoutKernelByName) {
  for (const int64_t width : {4, 12, 264}) {
    PointwiseProblem<float> problem({.sizes = {1, 1, 1, 4, 4, width, 8}});
    EXPECT_ERROR(UnsupportedError, problem.run_forward(), "multiple of 8", std::to_string(width));
  }
}

TEST(AttentionKernels, RefuseGatesOfTooManyColumns) {
  PointwiseSettings s{.sizes = {1, 1, 1, 4, 4, 8, 8}};
  s.gate = {.form = kernels::PairGate::Form::weight, .window = 1, .columns = 66};
  PointwiseProblem<float> problem(s);
  EXPECT_ERROR(ShapeError, problem.run_forward(), "1 to 65", "66");
}

TEST(AttentionKernels, AreThoseOfTheInstructionSetInForce) {
  const std::string chosen(isa_name(chosen_isa()));
  const bool by_float32 = chosen_isa() == Isa::avx512_bf16 && !multiplies_pairs();
  EXPECT_EQ(kernels::attention_isa<BFloat16>(), by_float32 ? "avx512" : chosen);
  EXPECT_EQ(kernels::attention_isa<float>(), testing::isa_of_float32());
  if (const char* forced = std::getenv("FOVEA_ISA")) {
    EXPECT_EQ(chosen, forced);
  }
}

TEST(ForcedIsa, EveryInstructionSetOfThisMachinePassesTheKernelTests) {
  testing::expect_tests_pass_on_every_isa("AttentionKernels.*");
}

}  // namespace
}  // namespace fovea::attention_test
