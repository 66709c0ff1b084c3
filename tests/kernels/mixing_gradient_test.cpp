// The backward mixing kernels against float64 loops, for every instruction set of this machine.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/kernels/cpu/isa.h"
#include "fovea/kernels/cpu/mixing_table.h"
#include "tests/support/expect_error.h"
#include "tests/support/mixing_problem.h"
#include "tests/support/pointwise_problem.h"

namespace fovea::testing {
namespace {

using kernels::KernelEquation;
using kernels::MixingTable;

template <class T>
std::vector<const MixingTable<T>*> tables() {
  std::vector<const MixingTable<T>*> all{&kernels::mixing_scalar<T>()};
#if defined(__x86_64__)
  if (found_isa() >= Isa::avx2) all.push_back(&kernels::mixing_avx2<T>());
  if (found_isa() >= Isa::avx512) all.push_back(&kernels::mixing_avx512<T>());
#endif
  return all;
}

struct Named {
  std::string name;
  MixingSettings settings;
};

// Every stage alone, and combinations.
std::vector<Named> every_stage(int64_t tokens) {
  std::vector<Named> all;
  const auto add = [&](const std::string& name,
                       const std::function<void(MixingSettings&)>& change) {
    MixingSettings s{.sizes = {1, 4, 2, tokens, tokens, 16, 24}};
    change(s);
    all.push_back({name + " " + std::to_string(tokens), s});
  };
  const auto everything = [](MixingSettings& s) {
    s.before = {6, 11}, s.after = {6, 11};
    s.mix_before = 4, s.mix_after = 4;
  };
  add("nothing", [](auto&) {});
  add("wide heads",
      [&](auto& s) { everything(s), s.sizes.head_dim = 136, s.sizes.value_dim = 72; });
  add("convolution before", [](auto& s) { s.before = {6, 11}; });
  add("convolution after", [](auto& s) { s.after = {6, 11}; });
  add("mix before", [](auto& s) { s.mix_before = 4; });
  add("mix after", [](auto& s) { s.mix_after = 4; });
  add("talking heads", [](auto& s) { s.mix_before = s.mix_after = 4; });
  add("both convolutions", [](auto& s) { s.before = {2, 15}, s.after = {8, 4}; });
  add("all four", everything);
  add("mixes of two widths", [](auto& s) { s.mix_before = 4, s.mix_after = 2, s.before = {3, 3}; });
  add("one key head", [&](auto& s) { everything(s), s.sizes.kv_heads = 1; });
  add("every extent", [](auto& s) { s.before = {1, 2}, s.after = {7, 1}, s.mix_before = 2; });
  add("widest", [](auto& s) { s.before = {8, 15}, s.after = {8, 15}, s.mix_after = 4; });
  add("documents", [&](auto& s) { everything(s), s.documents = 3; });
  add("short documents", [&](auto& s) { everything(s), s.documents = (s.sizes.keys + 3) / 4; });
  add("window", [&](auto& s) { everything(s), s.mask.window = 7; });
  add("window and sinks", [&](auto& s) { everything(s), s.mask.window = 20, s.mask.sinks = 2; });
  add("both ways", [&](auto& s) { everything(s), s.mask.causal = false; });
  add("strided", [&](auto& s) {
    everything(s), s.mask = {.window = 3, .sparsity = MaskRule::Sparsity::strided, .stride = 5};
  });
  add("eq4", [&](auto& s) { everything(s), s.equation = KernelEquation::eq4; });
  add("eq4 with window and documents", [&](auto& s) {
    everything(s), s.equation = KernelEquation::eq4, s.mask.window = 30, s.documents = 2;
  });
  add("eq4 both ways", [&](auto& s) {
    everything(s), s.equation = KernelEquation::eq4, s.mask = {.causal = false, .window = 9};
  });
  add("renormalised", [&](auto& s) { everything(s), s.renormalise = true; });
  add("renormalised without mix", [&](auto& s) { s.after = {3, 5}, s.renormalise = true; });
  add("tau", [&](auto& s) { everything(s), s.tau = true; });
  add("soft-cap", [&](auto& s) { everything(s), s.soft_cap = 1.5; });
  add("soft-cap with eq4",
      [&](auto& s) { everything(s), s.soft_cap = 1.5, s.equation = KernelEquation::eq4; });
  add("sink", [&](auto& s) { everything(s), s.sink = true; });
  add("no lse gradient", [&](auto& s) { everything(s), s.lse_gradient = false; });
  add("dropout", [&](auto& s) { everything(s), s.dropout = 0.3; });
  add("dropout without mix", [&](auto& s) { s.before = {3, 5}, s.dropout = 0.3; });
  add("dropout and renormalised",
      [&](auto& s) { everything(s), s.mix_after = 0, s.renormalise = true, s.dropout = 0.3; });
  add("last queries", [&](auto& s) { everything(s), s.sizes.queries = (tokens + 1) / 2; });
  add("batch", [&](auto& s) { everything(s), s.sizes.batch = 2, s.documents = 2; });
  add("everything", [&](auto& s) {
    everything(s);
    s.sizes.batch = 2, s.documents = 2, s.mask.window = 50, s.renormalise = true;
    s.tau = s.sink = true, s.soft_cap = 2.0, s.dropout = 0.2;
  });
  return all;
}

// Each gradient by itself: an error in one of them may leave the others right.
template <class T>
void expect_truth(const Named& named, double bound) {
  const MixingProblem<T> problem(named.settings);
  const MixingOutputs outputs = problem.outputs_by_formula();
  MixingOperands truth = problem.gradients_by_formula();
  for (const MixingTable<T>* table : tables<T>()) {
    MixingOperands got = problem.gradients_by_kernels(outputs, table);
    auto names = got.named(), expected = truth.named();
    for (size_t n = 0; n < names.size(); ++n) {
      ASSERT_EQ(names[n].second->size(), expected[n].second->size());
      // A row of one key has weights that no logit moves: its sums cancel.
      EXPECT_LT(numbers_error(*names[n].second, *expected[n].second, 1e-2), bound)
          << table->isa << ", " << named.name << ": " << names[n].first;
    }
  }
}

// Spec 2, 3.2 to 3.4, 10.2; M-1, M-3, M-5, M-9, M-11, M-16, M-17.
class MixingGradients : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Tokens, MixingGradients, ::testing::Values(1, 3, 19, 97));

TEST_P(MixingGradients, EqualTheFormulasForEveryStage) {
  for (const Named& named : every_stage(GetParam())) expect_truth<float>(named, 2e-5);
}

}  // namespace
}  // namespace fovea::testing
