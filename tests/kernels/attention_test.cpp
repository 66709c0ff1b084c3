// The fused attention kernels against scalar loops in float64, on every instruction set that this
// machine has: the program starts itself with FOVEA_ISA forced.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/attention.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cstdlib>
#include <filesystem>
#include <functional>

#include "fovea/kernels/cpu/isa.h"
#include "tests/support/expect_error.h"
#include "tests/support/pointwise_problem.h"

namespace fovea {
namespace {

using namespace fovea::testing;

std::string_view isa_name(Isa isa) { return enum_names(isa)[static_cast<size_t>(isa)]; }

struct Tolerance {
  double forward, backward;
};
template <class T>
constexpr Tolerance kTolerance{1e-5, 1e-4};
template <>
constexpr Tolerance kTolerance<BFloat16>{1e-2, 3e-2};  // a number has 8 bits: 4e-3 each

template <class T>
void expect_truth(const PointwiseSettings& settings, const std::string& what) {
  PointwiseProblem<T> problem(settings);
  const PointwiseNumbers got = problem.by_kernels(), truth = problem.by_formula();
  const auto [forward, backward] = kTolerance<T>;
  EXPECT_LT(numbers_error(got.out, truth.out), forward) << what;
  EXPECT_LT(numbers_error(got.lse, truth.lse), forward) << what;
  EXPECT_LT(numbers_error(got.dq, truth.dq), backward) << what;
  EXPECT_LT(numbers_error(got.dk, truth.dk), backward) << what;
  EXPECT_LT(numbers_error(got.dv, truth.dv), backward) << what;
  if (settings.tau) {
    EXPECT_LT(numbers_error(got.dtau, truth.dtau), backward) << what;
  }
  if (settings.sink) {
    EXPECT_LT(numbers_error(got.dsink, truth.dsink), backward) << what;
  }
  if (settings.bias) {
    EXPECT_LT(numbers_error(got.dbias, truth.dbias), backward) << what;
  }
}

struct Named {
  std::string name;
  PointwiseSettings settings;
};

// One problem a stage, and their combinations.
std::vector<Named> every_stage(int64_t tokens, int64_t width) {
  using Sparsity = MaskRule::Sparsity;
  std::vector<Named> all;
  const auto add = [&](std::string name, const std::function<void(PointwiseSettings&)>& change) {
    PointwiseSettings s{.sizes = {2, 2, 1, tokens, tokens, width, width}};
    change(s);
    all.push_back({name + " " + std::to_string(tokens) + " x " + std::to_string(width), s});
  };
  add("causal", [](auto&) {});
  add("no lse gradient", [](auto& s) { s.lse_gradient = false; });
  add("full", [](auto& s) { s.mask.causal = false; });
  add("window", [](auto& s) { s.mask.window = 7; });
  add("window both ways with sinks",
      [](auto& s) { s.mask = {.causal = false, .window = 5, .sinks = 2}; });
  add("strided",
      [](auto& s) { s.mask = {.window = 3, .sparsity = Sparsity::strided, .stride = 5}; });
  add("fixed", [](auto& s) { s.mask = {.sparsity = Sparsity::fixed, .block = 6, .summary = 2}; });
  add("fixed both ways", [](auto& s) {
    s.mask = {.causal = false, .sparsity = Sparsity::fixed, .block = 6, .summary = 2};
  });
  add("documents", [](auto& s) { s.documents = 3; });
  add("documents with windows", [](auto& s) { s.documents = 2, s.mask.window = 6; });
  add("tau", [](auto& s) { s.tau = true; });
  add("soft-cap", [](auto& s) { s.soft_cap = 1.5; });
  add("alibi", [](auto& s) { s.alibi = true; });
  add("bias", [](auto& s) { s.bias = true; });
  add("bias both ways", [](auto& s) { s.bias = true, s.mask.causal = false; });
  add("sink", [](auto& s) { s.sink = true; });
  add("dropout", [](auto& s) { s.dropout = 0.3; });
  add("everything", [](auto& s) {
    s.tau = s.alibi = s.bias = s.sink = true;
    s.soft_cap = 2.0, s.dropout = 0.2, s.documents = 2, s.mask.window = 30, s.mask.sinks = 1;
  });
  return all;
}

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

// The reference of a row is the maximum of its first strip; what grows beyond needs the exact one.
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
  }
}

TEST(AttentionKernels, LeaveTheModeOfDenormalNumbersAlone) {
  volatile float small = 1e-38f;
  PointwiseProblem<float>(PointwiseSettings{}).by_kernels();
  EXPECT_GT(small * 0.1f, 0.0f);
}

TEST(AttentionKernels, RefuseWidthsWithoutKernelByName) {
  for (const int64_t width : {4, 12, 264}) {
    PointwiseProblem<float> problem({.sizes = {1, 1, 1, 4, 4, width, 8}});
    EXPECT_ERROR(UnsupportedError, problem.run_forward(), "multiple of 8", std::to_string(width));
  }
}

TEST(AttentionKernels, AreThoseOfTheInstructionSetInForce) {
  const std::string chosen(isa_name(chosen_isa()));
  const std::string bfloat16 = chosen == "amx" ? "avx512_bf16" : chosen;
  EXPECT_EQ(kernels::attention_isa<BFloat16>(), bfloat16);
  EXPECT_EQ(kernels::attention_isa<float>(), bfloat16 == "avx512_bf16" ? "avx512" : bfloat16);
  if (const char* forced = std::getenv("FOVEA_ISA")) {
    EXPECT_EQ(chosen, forced);
  }
}

TEST(ForcedIsa, EveryInstructionSetOfThisMachinePassesTheKernelTests) {
  for (const std::string_view name : enum_names(Isa{})) {
    if (name == isa_name(chosen_isa())) break;  // the present one runs here, better ones cannot
    const std::string command = "FOVEA_ISA=" + std::string(name) + " '" +
                                std::filesystem::read_symlink("/proc/self/exe").string() +
                                "' --gtest_brief=1 --gtest_filter='AttentionKernels.*' > /dev/null";
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }
}

}  // namespace
}  // namespace fovea
