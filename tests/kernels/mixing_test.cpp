// The forward mixing kernels against scalar loops in float64, on every instruction set that this
// machine has: the program starts itself with FOVEA_ISA forced.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/mixing/mixing.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "fovea/kernels/common/pair_products.h"
#include "tests/support/emulated_tiles.h"
#include "tests/support/every_isa.h"
#include "tests/support/expect_error.h"
#include "tests/support/mixing_problem.h"
#include "tests/support/pointwise_problem.h"  // numbers_error

namespace fovea::mixing_test {
namespace {

using namespace fovea::testing;

template <class T>
constexpr double kBound = 1e-5;
template <>
constexpr double kBound<BFloat16> = 2e-2;  // a number has 8 bits: 4e-3; logits are rounded, too

// The kernels in force (null) and, once, those of emulated tiles.
template <class T>
std::vector<const kernels::MixingTable<T>*> tables() {
  std::vector<const kernels::MixingTable<T>*> all{nullptr};
  if constexpr (std::is_same_v<T, BFloat16>)
    if (mixing_tiles() != nullptr && chosen_isa() == found_isa()) all.push_back(mixing_tiles());
  return all;
}

template <class T>
void expect_truth(const MixingSettings& settings, const std::string& what) {
  const MixingProblem<T> problem(settings);
  const MixingOutputs truth = problem.outputs_by_formula();
  for (const kernels::MixingTable<T>* table : tables<T>()) {
    const std::string name = what + (table != nullptr ? ", tiles" : "");
    const MixingOutputs got = problem.outputs_by_kernels(table);
    EXPECT_LT(numbers_error(got.out, truth.out), kBound<T>) << name;
    EXPECT_LT(numbers_error(got.lse, truth.lse), kBound<T>) << name;
    EXPECT_LT(numbers_error(got.row_sums, truth.row_sums), kBound<T>) << name;
  }
}

// Calls check(table) for every kernel of both types.
template <class Check>
void with_every_kernel(const Check& check) {
  for (const kernels::MixingTable<float>* table : tables<float>()) check(table);
  for (const kernels::MixingTable<BFloat16>* table : tables<BFloat16>()) check(table);
}
template <class T>
void set(T& x, float value) {
  from_float(value, x);
}

void expect_both(const MixingSettings& settings, const std::string& what) {
  expect_truth<float>(settings, what);
  expect_truth<BFloat16>(settings, what);
}

using Change = std::function<void(MixingSettings&)>;

// All four stages, with unequal kernels and groups.
void all_stages(MixingSettings& s) {
  s.before = {6, 11}, s.after = {3, 4};
  s.mix_before = 4, s.mix_after = 2;
}

// Focus and biases, alone and beside all stages. Spec 0.1, 6.3, 6.4, 11.2, U-10, U-23.
template <class Add, class Joined>
void add_terms(const Add& add, const Joined& joined) {
  using Form = kernels::PairGate::Form;
  for (const Form form : {Form::weight, Form::capped_weight, Form::sigmoid_weight,
                          Form::sigmoid_logit, Form::log_sigmoid}) {
    const std::string name = "gate " + std::to_string(static_cast<int>(form));
    const auto gate = [form](MixingSettings& s) {
      s.gate = form, s.gate_offset = 0.01, s.gate_columns = 5, s.near = 6, s.sinks = 2;
    };
    joined(name, gate);
    add(name + " alone", gate);
    add(name + " and mix", [&](auto& s) { gate(s), s.mix_before = 2, s.documents = 2; });
  }
  joined("groups", [](auto& s) { s.groups = 5, s.near = 4, s.sinks = 1; });
  joined("groups over 32, eq4, documents", [](auto& s) {
    s.groups = 40, s.near = 3, s.documents = 2, s.equation = kernels::KernelEquation::eq4;
  });
  add("groups alone", [](auto& s) { s.groups = 6, s.near = 2; });
  joined("alibi", [](auto& s) { s.alibi = true; });
  joined("bias", [](auto& s) { s.bias_count = 20; });
  joined("bias both ways", [](auto& s) {
    s.bias_count = 21, s.bias_first = -10, s.mask.causal = false, s.alibi = true;
  });
}

// One problem a stage and a mask, and their combinations.
std::vector<std::pair<std::string, MixingSettings>> every_setting(int64_t tokens, int64_t width) {
  std::vector<std::pair<std::string, MixingSettings>> all;
  const auto add = [&](const std::string& name, const Change& change) {
    MixingSettings s{.sizes = {2, 4, 2, tokens, tokens, width, width}};
    change(s);
    all.emplace_back(name + ", " + std::to_string(tokens) + " tokens", s);
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
  joined("window with sinks", [](auto& s) { s.mask.window = 9, s.mask.sinks = 2; });
  joined("window both ways", [](auto& s) { s.mask = {.causal = false, .window = 5}; });
  joined("strided", [](auto& s) {
    s.mask = {.window = 3, .sparsity = MaskRule::Sparsity::strided, .stride = 5};
  });
  joined("fixed", [](auto& s) {
    s.mask = {.sparsity = MaskRule::Sparsity::fixed, .block = 6, .summary = 2};
  });
  joined("documents", [](auto& s) { s.documents = 3; });
  joined("documents with a window", [](auto& s) { s.documents = 2, s.mask.window = 6; });
  joined("tau", [](auto& s) { s.tau = true; });
  joined("soft-cap", [](auto& s) { s.soft_cap = 1.5; });
  joined("sink", [](auto& s) { s.sink = true; });
  joined("dropout", [](auto& s) { s.dropout = 0.3; });
  joined("renormalised", [](auto& s) { s.renormalise = true; });
  joined("eq4", [](auto& s) { s.equation = kernels::KernelEquation::eq4; });
  joined("eq4, documents, window", [](auto& s) {
    s.equation = kernels::KernelEquation::eq4, s.documents = 2, s.mask.window = 9;
  });
  joined("eq4 both ways",
         [](auto& s) { s.equation = kernels::KernelEquation::eq4, s.mask.causal = false; });
  add_terms(add, joined);
  add("mixes alone with everything", [](auto& s) {
    s.mix_before = 4, s.mix_after = 2;
    s.tau = s.sink = true;
    s.soft_cap = 2.0, s.dropout = 0.2, s.documents = 2, s.mask.window = 30, s.mask.sinks = 1;
  });
  joined("everything", [](auto& s) {
    s.tau = s.sink = s.renormalise = true;
    s.soft_cap = 2.0, s.dropout = 0.2, s.documents = 2, s.mask.window = 30, s.mask.sinks = 1;
  });
  return all;
}

// Spec 3.2 to 3.4, 2, 10, 7.4, 7.5; M-1, M-3, M-4, M-5, M-9, M-11, M-16, M-17.
TEST(MixingKernels, EqualTheFormulaForEveryStageAndOddLengths) {
  for (const int64_t tokens : {1, 3, 19, 97}) {
    for (const auto& [name, settings] : every_setting(tokens, 24)) expect_both(settings, name);
  }
}

// Strips, steps and ranges of strips have borders.
TEST(MixingKernels, EqualTheFormulaOverSeveralStripsAndSteps) {
  for (const int64_t tokens : {129, 300}) {
    for (const auto& [name, given] : every_setting(tokens, 8)) {
      MixingSettings settings = given;
      settings.sizes.batch = 1;
      expect_truth<float>(settings, name);
    }
  }
}

// M-3: even and odd kernels, each size of them.
TEST(MixingKernels, EqualTheFormulaForEveryKernel) {
  for (int64_t queries = 1; queries <= kernels::kMostKernelRows; ++queries) {
    for (int64_t keys = 1; keys <= kernels::kMostKernelKeys; ++keys) {
      const MixingSettings s{.sizes = {1, 1, 1, 70, 70, 8, 8},
                             .before = {queries, keys},
                             .after = {1 + (queries + 3) % 8, 1 + (keys + 7) % 15}};
      expect_truth<float>(s, std::to_string(queries) + " x " + std::to_string(keys));
    }
  }
}

TEST(MixingKernels, EqualTheFormulaForEveryGroupOfHeads) {
  for (const int64_t width : {1, 2, 3, 5, 6, 7, 8, 12, 16, 24, 32}) {
    const MixingSettings s{.sizes = {1, 2 * width, width, 52, 52, 8, 8},
                           .before = {2, 3},
                           .mix_before = width,
                           .mix_after = width % 2 == 0 ? width / 2 : width};
    expect_truth<float>(s, std::to_string(width));
  }
  // Bundles are whole groups of both.
  expect_truth<float>({.sizes = {1, 12, 4, 40, 40, 8, 8}, .mix_before = 4, .mix_after = 6}, "4, 6");
}

TEST(MixingKernels, EqualTheFormulaForEveryWidth) {
  for (const int64_t width : {8, 40, 64, 80, 128, 256}) {
    MixingSettings s{.sizes = {1, 2, 2, 66, 66, width, 264 - width}};
    s.scale = 1.0 / std::sqrt(static_cast<double>(width));
    s.before = {2, 3}, s.after = {3, 2};
    expect_both(s, "width " + std::to_string(width));
  }
}

TEST(MixingKernels, EqualTheFormulaForQueriesThatAreNotTheKeys) {
  for (const auto& [queries, keys] :
       {std::pair<int64_t, int64_t>{1, 200}, {5, 70}, {70, 133}, {130, 30}}) {
    MixingSettings s{.sizes = {1, 6, 2, queries, keys, 16, 40}};
    s.before = {3, 5}, s.after = {4, 3};
    s.mix_before = 6, s.mix_after = 3;
    s.mask.causal = queries <= keys;
    s.dropout = 0.1;
    expect_both(s, std::to_string(queries) + " queries");
  }
}

// The reference of a row is the maximum of its first step; what grows beyond needs the exact one.
TEST(MixingKernels, SurviveLogitsThatGrowWithTheKeys) {
  MixingSettings s{.sizes = {1, 2, 1, 300, 300, 16, 16}};
  s.before = {2, 3}, s.mix_after = 2;
  s.scale = 20.0;
  const MixingProblem<float> problem(s);
  const MixingOutputs got = problem.outputs_by_kernels(), truth = problem.outputs_by_formula();
  EXPECT_GT(*std::ranges::max_element(truth.lse), 200.0);
  EXPECT_LT(numbers_error(got.out, truth.out), 1e-3);  // logits of hundreds have errors of 1e-5
  EXPECT_LT(numbers_error(got.lse, truth.lse), 1e-6);
}

std::vector<double> rows_of(const std::vector<double>& out, int64_t begin, int64_t end,
                            const kernels::AttentionSizes& s) {
  const int64_t row = s.heads * s.value_dim;
  return {out.begin() + begin * row, out.begin() + end * row};
}

// Spec 13.3. NaN in the future is not 0 times anything.
TEST(MixingKernels, NoBitOfARowDependsOnLaterTokens) {
  MixingSettings s{.sizes = {1, 4, 2, 200, 200, 16, 16}};
  all_stages(s);
  const int64_t changed = 117;
  for (const auto equation : {kernels::KernelEquation::eq5, kernels::KernelEquation::eq4}) {
    s.equation = equation;
    with_every_kernel([&]<class T>(const kernels::MixingTable<T>* table) {
      MixingProblem<T> problem(s);
      const std::vector<double> before = problem.outputs_by_kernels(table).out;
      for (std::vector<T>* x : {&problem.keys(), &problem.values()}) {
        for (int64_t n = changed * 2 * 16; n < std::ssize(*x); ++n)
          set((*x)[n], n % 3 == 0 ? std::numeric_limits<float>::quiet_NaN() : 1e30f);
      }
      for (size_t n = changed * 4 * 16; n < problem.queries().size(); ++n)
        set(problem.queries()[n], std::numeric_limits<float>::quiet_NaN());
      const std::vector<double> after = problem.outputs_by_kernels(table).out;
      EXPECT_EQ(rows_of(before, 0, changed, s.sizes), rows_of(after, 0, changed, s.sizes));
      EXPECT_TRUE(std::isnan(after[changed * 4 * 16]));
    });
  }
}

// The same of the gate's factors, of memberships and biases.
TEST(MixingKernels, NoBitOfARowDependsOnTheGroupsOfLaterTokens) {
  const int64_t changed = 117;
  for (const auto form :
       {kernels::PairGate::Form::weight, kernels::PairGate::Form::sigmoid_weight,
        kernels::PairGate::Form::sigmoid_logit, kernels::PairGate::Form::log_sigmoid}) {
    MixingSettings s{.sizes = {1, 4, 2, 200, 200, 16, 16}};
    all_stages(s);
    s.gate = form, s.gate_offset = 0.01, s.near = 5, s.sinks = 1, s.groups = 7;
    s.bias_count = 30, s.alibi = true;
    MixingProblem<float> problem(s);
    const std::vector<double> before = problem.outputs_by_kernels().out;
    for (int64_t n = changed * s.gate_columns; n < std::ssize(problem.key_gates()); ++n)
      problem.key_gates()[n] = n % 3 == 0 ? std::numeric_limits<float>::quiet_NaN() : 1e30f;
    for (size_t n = changed; n < problem.key_members().size(); ++n) problem.key_members()[n] = -1;
    const std::vector<double> after = problem.outputs_by_kernels().out;
    EXPECT_EQ(rows_of(before, 0, changed, s.sizes), rows_of(after, 0, changed, s.sizes));
    EXPECT_NE(before.back(), after.back());
  }
}

// Spec 9.10, M-11: tokens of other documents change no bit, wherever the document stands.
TEST(MixingKernels, NoBitOfADocumentDependsOnItsNeighbours) {
  MixingSettings s{.sizes = {1, 4, 2, 210, 210, 16, 16}, .documents = 3};
  all_stages(s);
  with_every_kernel([&]<class T>(const kernels::MixingTable<T>* table) {
    MixingProblem<T> problem(s);
    const std::vector<double> before = problem.outputs_by_kernels(table).out;
    for (std::vector<T>* x : {&problem.keys(), &problem.values()}) {
      for (size_t n = 0; n < 70 * 2 * 16; ++n) set((*x)[n], std::numeric_limits<float>::infinity());
      for (size_t n = 140 * 2 * 16; n < x->size(); ++n) set((*x)[n], 100.0f * to_float((*x)[n]));
    }
    for (size_t n = 0; n < 70 * 4 * 16; ++n)
      set(problem.queries()[n], -100.0f * to_float(problem.queries()[n]));
    const std::vector<double> after = problem.outputs_by_kernels(table).out;
    EXPECT_EQ(rows_of(before, 70, 140, s.sizes), rows_of(after, 70, 140, s.sizes));
    EXPECT_NE(before, after);
  });
}

// Spec 3.6, M-10: a row has the same bits whatever rows stand before those that it reads.
TEST(MixingKernels, TheEarlierQueriesOfBothKernelsAreEnoughToTheBit) {
  MixingSettings s{.sizes = {1, 4, 2, 230, 230, 16, 16}};
  all_stages(s);
  const int64_t earlier = 5 + 2;
  with_every_kernel([&]<class T>(const kernels::MixingTable<T>* table) {
    const std::vector<double> whole = MixingProblem<T>(s).outputs_by_kernels(table).out;
    for (const int64_t queries : {1, 2, 60, 100}) {
      MixingSettings last = s;
      last.sizes.queries = queries + earlier;
      MixingProblem<T> problem(s), part(last);
      const auto copy_last = [](const std::vector<T>& from, std::vector<T>& to) {
        std::copy(from.end() - std::ssize(to), from.end(), to.begin());
      };
      copy_last(problem.queries(), part.queries());
      part.keys() = problem.keys();
      part.values() = problem.values();
      part.take_parameters(problem);
      const std::vector<double> got = part.outputs_by_kernels(table).out;
      EXPECT_EQ(rows_of(got, earlier, earlier + queries, s.sizes),
                rows_of(whole, 230 - queries, 230, s.sizes))
          << queries;
    }
  });
}

TEST(MixingKernels, GiveTheSameBitsForAnyNumberOfThreads) {
  for (const bool convolves : {true, false}) {
    MixingSettings s{.sizes = {2, 4, 2, 700, 700, 32, 32}};
    all_stages(s);
    s.gate = kernels::PairGate::Form::weight, s.gate_offset = 0.01, s.groups = 6, s.alibi = true;
    if (!convolves) s.before = s.after = {};
    s.sink = true;
    const int before = omp_get_max_threads();
    with_every_kernel([&]<class T>(const kernels::MixingTable<T>* table) {
      std::vector<MixingOutputs> runs;
      for (const int threads : {1, 2, 5}) {
        omp_set_num_threads(threads);
        runs.push_back(MixingProblem<T>(s).outputs_by_kernels(table));
      }
      for (const MixingOutputs& other : {runs[1], runs[2]}) {
        EXPECT_EQ(other.out, runs[0].out);
        EXPECT_EQ(other.lse, runs[0].lse);
      }
    });
    omp_set_num_threads(before);
  }
}

// Spec 13.1: kernels and matrices that are the identity change no number.
TEST(MixingKernels, IdentitiesEqualPlainAttention) {
  MixingSettings s{.sizes = {1, 4, 2, 150, 150, 16, 16}};
  const MixingOutputs plain = MixingProblem<float>(s, 5).outputs_by_kernels();
  all_stages(s);
  const MixingOutputs got = MixingProblem<float>(s, 5, 0.0).outputs_by_kernels();
  EXPECT_LT(numbers_error(got.out, plain.out), 1e-6);
  EXPECT_LT(numbers_error(got.lse, plain.lse), 1e-6);
}

TEST(MixingKernels, MemoryGrowsWithTheTokensNotWithTheirSquare) {
  const auto bytes = [](int64_t tokens) {
    MixingSettings s{.sizes = {1, 16, 16, tokens, tokens, 8, 8}};
    s.before = s.after = {6, 11};
    s.mix_before = s.mix_after = 16;
    return MixingProblem<float>(s).scratch_bytes();
  };
  const int64_t at_2k = bytes(2048), at_4k = bytes(4096);
  EXPECT_LT(at_4k, 2 * at_2k);
  EXPECT_LT(at_4k, int64_t{16} * 4096 * 4096 * 4 / 8);  // an eighth of one map
}

// A strip whose exponentials would take too much memory computes them twice.
TEST(MixingKernels, GiveTheSameBitsWhateverTheyKeep) {
  const auto expect_same = []<class T>(T, const MixingSettings& settings, const std::string& what) {
    MixingProblem<T> problem(settings);
    const MixingOutputs kept = problem.outputs_by_kernels();
    const int64_t bytes = problem.scratch_bytes();
    problem.keep(0);
    const MixingOutputs twice = problem.outputs_by_kernels();
    EXPECT_LT(problem.scratch_bytes(), bytes) << what;
    EXPECT_EQ(kept.out, twice.out) << what;
    EXPECT_EQ(kept.lse, twice.lse) << what;
    EXPECT_EQ(kept.row_sums, twice.row_sums) << what;
  };
  for (const auto& [name, settings] : every_setting(300, 8)) {
    expect_same(0.0f, settings, name);
    expect_same(BFloat16{}, settings, name);
  }
  MixingSettings growing{.sizes = {1, 2, 1, 300, 300, 16, 16}};  // maxima are found anew
  growing.before = {2, 3}, growing.after = {3, 4}, growing.scale = 20.0;
  expect_same(0.0f, growing, "logits that grow");
}

TEST(MixingKernels, LeaveTheModeOfDenormalNumbersAlone) {
  volatile float small = 1e-38f;
  MixingProblem<float>(MixingSettings{}).outputs_by_kernels();
  EXPECT_GT(small * 0.1f, 0.0f);
}

TEST(MixingKernels, RefuseWhatTheyLackByName) {
  const auto refused = [](const Change& change, const std::string& a, const std::string& b) {
    MixingSettings s{.sizes = {1, 66, 66, 4, 4, 8, 8}};
    change(s);
    const MixingProblem<float> problem(s);
    EXPECT_ERROR(UnsupportedError, problem.outputs_by_kernels(), a, b);
  };
  refused([](auto& s) { s.before = {9, 3}; }, "at most 8 queries x 15 keys", "9 x 3");
  refused([](auto& s) { s.after = {2, 16}; }, "at most 8 queries x 15 keys", "2 x 16");
  refused([](auto& s) { s.mix_after = 33; }, "at most 32", "33");
  refused([](auto& s) { s.sizes.head_dim = 12; }, "multiple of 8", "12");
}

TEST(MixingKernels, AreThoseOfTheInstructionSetInForce) {
  const std::string_view chosen = enum_names(chosen_isa())[static_cast<size_t>(chosen_isa())];
  EXPECT_EQ(kernels::mixing_isa<float>(), testing::isa_of_float32());
  const bool by_float32 = chosen_isa() == Isa::avx512_bf16 && !multiplies_pairs();
  EXPECT_EQ(kernels::mixing_isa<BFloat16>(), by_float32 ? "avx512" : chosen);
  if (const char* forced = std::getenv("FOVEA_ISA")) {
    EXPECT_EQ(chosen, forced);
  }
}

TEST(ForcedIsaOfMixing, EveryInstructionSetOfThisMachinePassesTheKernelTests) {
  testing::expect_tests_pass_on_every_isa("MixingKernels.*");
}

}  // namespace
}  // namespace fovea::mixing_test
