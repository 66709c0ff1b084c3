// The decoding kernels of mixed pairs against scalar loops in float64, on every instruction set
// that this machine has: the program starts itself with FOVEA_ISA forced.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/decode/mixing_decode.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "fovea/kernels/common/isa.h"
#include "tests/support/every_isa.h"
#include "tests/support/expect_error.h"
#include "tests/support/mixing_problem.h"
#include "tests/support/pointwise_problem.h"  // numbers_error

namespace fovea::mixing_decode_test {
namespace {

using namespace fovea::testing;

template <class T>
void expect_truth(const MixingSettings& settings, int64_t results, const std::string& what) {
  constexpr double kBound = std::is_same_v<T, float> ? 1e-5 : 2e-2;  // 8 bits a number: 4e-3
  const MixingProblem<T> problem(settings);
  const MixingOutputs got = problem.outputs_by_decode(results),
                      truth = problem.last_rows(problem.outputs_by_formula(), results);
  EXPECT_LT(numbers_error(got.out, truth.out), kBound) << what;
  EXPECT_LT(numbers_error(got.lse, truth.lse), kBound) << what;
}

void expect_both(const MixingSettings& settings, const std::string& what) {
  for (const int64_t results : {int64_t{1}, settings.sizes.queries}) {
    const std::string with_results = what + ", results " + std::to_string(results);
    expect_truth<float>(settings, results, with_results);
    expect_truth<BFloat16>(settings, results, with_results);
  }
}

using Change = std::function<void(MixingSettings&)>;

// All four stages, with unequal kernels and groups.
void all_stages(MixingSettings& s) {
  s.before = {6, 11}, s.after = {3, 4};
  s.mix_before = 4, s.mix_after = 2;
}

// One problem a stage and a mask, and their combinations.
std::vector<std::pair<std::string, MixingSettings>> every_setting(int64_t queries, int64_t keys) {
  std::vector<std::pair<std::string, MixingSettings>> all;
  const auto add = [&](const std::string& name, const Change& change) {
    MixingSettings s{.sizes = {2, 4, 2, std::min(queries, keys), keys, 24, 24}};
    change(s);
    all.emplace_back(name + ", " + std::to_string(keys) + " keys", s);
  };
  const auto joined = [&](const std::string& name, const Change& change) {
    add(name, [&](MixingSettings& s) { all_stages(s), change(s); });
  };
  add("nothing", [](auto&) {});
  add("convolution before", [](auto& s) { s.before = {6, 11}; });
  add("convolution after", [](auto& s) { s.after = {6, 11}; });
  add("both convolutions", [](auto& s) { s.before = {8, 15}, s.after = {2, 3}; });
  add("mix before", [](auto& s) { s.mix_before = 4; });
  add("mix after", [](auto& s) { s.mix_after = 4; });
  add("both mixes", [](auto& s) { s.mix_before = 2, s.mix_after = 4; });
  add("convolution before, mix after", [](auto& s) { s.before = {4, 6}, s.mix_after = 2; });
  add("mix before, convolution after", [](auto& s) { s.mix_before = 2, s.after = {4, 6}; });
  joined("all", [](auto&) {});
  joined("full", [](auto& s) { s.mask.causal = false; });
  joined("window", [](auto& s) { s.mask.window = 7; });
  joined("window with sinks", [](auto& s) { s.mask.window = 70, s.mask.sinks = 2; });
  joined("tau", [](auto& s) { s.tau = true; });
  joined("soft-cap", [](auto& s) { s.soft_cap = 1.5; });
  joined("sink", [](auto& s) { s.sink = true; });
  joined("renormalised", [](auto& s) { s.renormalise = true; });
  joined("eq4", [](auto& s) { s.equation = kernels::KernelEquation::eq4; });
  joined("eq4 in a window",
         [](auto& s) { s.equation = kernels::KernelEquation::eq4, s.mask.window = 9; });
  joined("eq4 both ways",
         [](auto& s) { s.equation = kernels::KernelEquation::eq4, s.mask.causal = false; });
  using Form = kernels::PairGate::Form;
  for (const Form form : {Form::weight, Form::capped_weight, Form::sigmoid_weight,
                          Form::sigmoid_logit, Form::log_sigmoid}) {
    const std::string gate = "gate " + std::to_string(static_cast<int>(form));
    joined(gate, [&](auto& s) {
      s.gate = form, s.gate_offset = 0.01, s.gate_columns = 5, s.near = 6, s.sinks = 2;
    });
    add(gate + " and mix", [&](auto& s) {
      s.gate = form, s.gate_offset = 0.01, s.near = 3, s.mix_before = 2, s.mask.window = 40;
      s.mask.sinks = 1;
    });
  }
  joined("groups", [](auto& s) { s.groups = 5, s.near = 4, s.sinks = 1; });
  joined("groups over 32, eq4, window", [](auto& s) {
    s.groups = 40, s.near = 3, s.sinks = 2, s.mask.window = 50, s.mask.sinks = 4;
    s.equation = kernels::KernelEquation::eq4;
  });
  add("groups alone", [](auto& s) { s.groups = 6, s.near = 2; });
  joined("biases",
         [](auto& s) { s.alibi = true, s.bias_count = 20, s.mask.window = 60, s.mask.sinks = 3; });
  joined("everything", [](auto& s) {
    s.tau = s.sink = s.renormalise = true;
    s.soft_cap = 2.0, s.mask.window = 30, s.mask.sinks = 1;
  });
  return all;
}

// Spec 3.2, 3.3, 3.6, 2, 10, 7.4, 7.5; M-1, M-3, M-4, M-5, M-9, M-10, M-17.
TEST(MixingDecodeKernels, EqualTheFormulaForEveryStageAndOddLengths) {
  for (const int64_t keys : {1, 3, 19, 97, 257}) {
    for (const auto& [name, settings] : every_setting(9, keys)) expect_both(settings, name);
  }
  for (const auto& [name, settings] : every_setting(8, 1025))
    expect_truth<float>(settings, 1, name);
}

// M-3: even and odd kernels, each size of them.
TEST(MixingDecodeKernels, EqualTheFormulaForEveryKernel) {
  for (int64_t queries = 1; queries <= kernels::kMostKernelRows; ++queries) {
    for (int64_t keys = 1; keys <= kernels::kMostKernelKeys; ++keys) {
      MixingSettings s{.sizes = {1, 1, 1, 16, 70, 8, 8},
                       .before = {queries, keys},
                       .after = {1 + (queries + 3) % 8, 1 + (keys + 7) % 15}};
      const std::string what = std::to_string(queries) + " x " + std::to_string(keys);
      expect_truth<float>(s, 1, what);
      s.equation = kernels::KernelEquation::eq4;
      expect_truth<float>(s, 2, what + " eq4");
    }
  }
}

TEST(MixingDecodeKernels, EqualTheFormulaForEveryGroupOfHeadsAndWidth) {
  for (const int64_t width : {1, 2, 3, 5, 6, 7, 8, 12, 16, 32}) {
    for (const int64_t kv_heads : {int64_t{1}, width, 2 * width}) {
      const MixingSettings s{.sizes = {1, 2 * width, kv_heads, 3, 70, 8, 40},
                             .before = {2, 3},
                             .mix_before = width,
                             .mix_after = width % 2 == 0 ? width / 2 : width};
      expect_truth<float>(s, 1, std::to_string(width));
    }
  }
  for (const int64_t width : {8, 40, 64, 80, 128, 256}) {
    MixingSettings s{.sizes = {1, 3, 1, 2, 66, width, 264 - width}};
    s.scale = 1.0 / std::sqrt(static_cast<double>(width));
    s.before = {2, 3}, s.mix_after = 3;
    expect_both(s, "width " + std::to_string(width));
  }
}

// Spec 3.6, M-10: the earlier queries of both kernels are enough, and all of them are needed.
TEST(MixingDecodeKernels, NeedExactlyTheEarlierQueriesOfBothKernels) {
  MixingSettings whole{.sizes = {1, 4, 2, 16, 90, 16, 16}};
  all_stages(whole);
  MixingProblem<float> problem(whole);
  const std::vector<double> expected = problem.outputs_by_decode(1).out;
  for (int64_t queries = 1; queries <= 16; ++queries) {
    MixingSettings last = whole;
    last.sizes.queries = queries;
    MixingProblem<float> part(last);
    part.queries().assign(problem.queries().end() - std::ssize(part.queries()),
                          problem.queries().end());
    part.keys() = problem.keys();
    part.values() = problem.values();
    part.take_parameters(problem);
    EXPECT_EQ(part.outputs_by_decode(1).out == expected, queries > 5 + 2) << queries;
  }
}

TEST(MixingDecodeKernels, GiveTheSameBitsForAnyNumberOfThreadsAndNeighbours) {
  MixingSettings s{.sizes = {3, 4, 2, 8, 700, 32, 32}};
  all_stages(s);
  s.sink = s.renormalise = true;
  const int before = omp_get_max_threads();
  MixingProblem<float> problem(s);
  std::vector<MixingOutputs> runs;
  for (const int threads : {1, 2, 3}) {
    omp_set_num_threads(threads);
    runs.push_back(problem.outputs_by_decode(2));
  }
  omp_set_num_threads(before);
  for (const MixingOutputs& other : {runs[1], runs[2]}) {
    EXPECT_EQ(other.out, runs[0].out);
    EXPECT_EQ(other.lse, runs[0].lse);
  }
  for (size_t n = 0; n < problem.keys().size() / 3; ++n)
    problem.keys()[n] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<double> out = problem.outputs_by_decode(2).out;
  const auto third = std::ssize(out) / 3;
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_TRUE(std::equal(out.begin() + third, out.end(), runs[0].out.begin() + third));
}

// Spec 13.3. What is not seen is chosen away, not multiplied by 0.
TEST(MixingDecodeKernels, NoBitDependsOnKeysThatAreNotSeen) {
  MixingSettings s{.sizes = {1, 4, 2, 9, 200, 16, 16}};
  all_stages(s);
  s.mask.window = 50;
  for (const auto equation : {kernels::KernelEquation::eq5, kernels::KernelEquation::eq4}) {
    s.equation = equation;
    MixingProblem<float> problem(s);
    const MixingOutputs before = problem.outputs_by_decode(2);
    for (std::vector<float>* x : {&problem.keys(), &problem.values()}) {
      for (int64_t n = 0; n < (199 - 50 - 9) * 2 * 16; ++n)
        (*x)[n] = n % 3 == 0 ? std::numeric_limits<float>::quiet_NaN()
                             : std::numeric_limits<float>::infinity();
    }
    const MixingOutputs after = problem.outputs_by_decode(2);
    EXPECT_EQ(before.out, after.out);
    // The last key is seen by the last row alone.
    problem.values().back() = std::numeric_limits<float>::quiet_NaN();
    const std::vector<double> last = problem.outputs_by_decode(2).out;
    EXPECT_TRUE(std::equal(last.begin(), last.begin() + 64, before.out.begin()));
    EXPECT_TRUE(std::isnan(last.back()));
  }
}

TEST(MixingDecodeKernels, SurviveLogitsThatGrowWithTheKeys) {
  MixingSettings s{.sizes = {1, 2, 1, 2, 300, 16, 16}};
  s.before = {2, 3}, s.mix_after = 2;
  s.scale = 20.0;
  const MixingProblem<float> problem(s);
  const MixingOutputs got = problem.outputs_by_decode(1),
                      truth = problem.last_rows(problem.outputs_by_formula(), 1);
  EXPECT_LT(numbers_error(got.out, truth.out), 1e-3);  // logits of hundreds have errors of 1e-5
  EXPECT_LT(numbers_error(got.lse, truth.lse), 1e-6);
}

TEST(MixingDecodeKernels, RefuseWhatTheyLackByName) {
  MixingSettings s{.sizes = {1, 2, 2, 17, 20, 8, 8}};
  EXPECT_ERROR(UnsupportedError, MixingProblem<float>(s).outputs_by_decode(1), "at most 16 queries",
               "17");
  s.sizes.queries = 4;
  s.dropout = 0.5;
  EXPECT_ERROR(UnsupportedError, MixingProblem<float>(s).outputs_by_decode(1), "decoding",
               "no dropout");
  s.dropout = 0.0;
  EXPECT_ERROR(ShapeError, MixingProblem<float>(s).outputs_by_decode(5), "0 to 4 rows", "5");
}

TEST(ForcedIsaOfMixingDecode, EveryInstructionSetOfThisMachinePassesTheKernelTests) {
  testing::expect_tests_pass_on_every_isa("MixingDecodeKernels.*");
}

}  // namespace
}  // namespace fovea::mixing_decode_test
