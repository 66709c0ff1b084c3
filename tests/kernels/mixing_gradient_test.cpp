// The backward mixing kernels against float64 loops, for every instruction set of this machine.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/kernels/cpu/mixing/mixing_table.h"
#include "tests/support/emulated_tiles.h"
#include "tests/support/expect_error.h"
#include "tests/support/kernels_of_this_machine.h"
#include "tests/support/mixing_problem.h"
#include "tests/support/pointwise_problem.h"

namespace fovea::testing::mixing_gradient_test {
namespace {

using kernels::KernelEquation;
using kernels::MixingTable;

template <class T>
std::vector<const MixingTable<T>*> tables() {
  auto all = kernels_of_this_machine<MixingTable<T>>();
  if constexpr (std::is_same_v<T, BFloat16>)
    if (mixing_tiles() != nullptr) all.push_back(mixing_tiles());
  return all;
}

struct Named {
  std::string name;
  MixingSettings settings;
};

// Focus and biases between the head mix and the softmax: alone, and beside all four stages.
template <class Add, class Everything>
void add_terms(const Add& add, const Everything& everything) {
  using Form = kernels::PairGate::Form;
  const auto focus = [](Form form) {
    return [form](MixingSettings& s) {
      s.gate = form, s.gate_offset = form == Form::sigmoid_logit ? 0.1 : 0.01;
      s.near = 5, s.sinks = 2;
    };
  };
  const std::pair<Form, std::string> forms[] = {{Form::weight, "gate weight"},
                                                {Form::capped_weight, "gate capped_weight"},
                                                {Form::sigmoid_weight, "gate sigmoid_weight"},
                                                {Form::sigmoid_logit, "gate sigmoid_logit"},
                                                {Form::log_sigmoid, "gate log_sigmoid"}};
  for (const auto& [form, name] : forms) {
    const auto gate = focus(form);
    add(name, [&](auto& s) { everything(s), gate(s); });
    add(name + " alone", [&](auto& s) { gate(s), s.gate_columns = 7; });
    add(name + ", convolution", [&](auto& s) { gate(s), s.before = {3, 5}, s.documents = 2; });
    add(name + ", mix", [&](auto& s) { gate(s), s.mix_before = 2, s.sizes.batch = 2; });
  }
  add("gate, eq4, window, renormalised", [&](auto& s) {
    everything(s), focus(Form::weight)(s);
    s.equation = KernelEquation::eq4, s.mask.window = 30, s.renormalise = true;
  });
  add("groups", [&](auto& s) { everything(s), s.groups = 5, s.near = 4, s.sinks = 1; });
  add("groups, eq4",
      [&](auto& s) { everything(s), s.groups = 5, s.near = 4, s.equation = KernelEquation::eq4; });
  add("groups over 32, documents, window", [&](auto& s) {
    everything(s), s.groups = 40, s.near = 3, s.sinks = 2, s.documents = 2, s.mask.window = 40;
    s.sizes.batch = 2;
  });
  add("groups alone", [](auto& s) { s.groups = 6, s.near = 2, s.sizes.batch = 2; });
  add("alibi", [&](auto& s) { everything(s), s.alibi = true; });
  add("bias", [&](auto& s) { everything(s), s.bias_count = 20; });
  add("bias both ways", [](auto& s) {
    s.mix_before = 4, s.bias_count = 21, s.bias_first = -10, s.mask.causal = false;
    s.sizes.batch = 2;
  });
  add("gate, biases, tau, cap, sink, dropout", [&](auto& s) {
    everything(s), focus(Form::sigmoid_logit)(s);
    s.alibi = s.tau = s.sink = true, s.bias_count = 9, s.soft_cap = 2.0, s.dropout = 0.2;
  });
}

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
  add_terms(add, everything);
  add("batch", [&](auto& s) { everything(s), s.sizes.batch = 2, s.documents = 2; });
  add("everything", [&](auto& s) {
    everything(s);
    s.sizes.batch = 2, s.documents = 2, s.mask.window = 50, s.renormalise = true;
    s.tau = s.sink = true, s.soft_cap = 2.0, s.dropout = 0.2;
  });
  return all;
}

MixingSettings stage(const std::string& name, int64_t tokens) {
  for (const Named& named : every_stage(tokens))
    if (named.name == name + " " + std::to_string(tokens)) return named.settings;
  ADD_FAILURE() << "no stage is called " << name;
  return {};
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

TEST(MixingGradient, EqualsTheFormulasAtOddSizes) {
  for (const Named& named : every_stage(257)) {
    for (const char* name : {"all four", "talking heads", "eq4 with", "documents", "everything"})
      if (named.name.starts_with(name)) expect_truth<float>(named, 2e-5);
  }
}

TEST(MixingGradient, TakesKernelsOfEveryExtent) {
  for (int64_t cq = 1; cq <= kernels::kMostKernelRows; ++cq) {
    for (int64_t ck = 1; ck <= kernels::kMostKernelKeys; ++ck) {
      MixingSettings s{.sizes = {1, 2, 1, 23, 23, 8, 8}};
      s.before = {cq, ck};
      s.after = {kernels::kMostKernelRows + 1 - cq, kernels::kMostKernelKeys + 1 - ck};
      s.equation = (cq + ck) % 2 == 0 ? KernelEquation::eq4 : KernelEquation::eq5;
      expect_truth<float>({std::to_string(cq) + " x " + std::to_string(ck), s}, 2e-5);
    }
  }
}

TEST(MixingGradient, MixesGroupsOfEveryWidth) {
  for (int64_t width = 1; width <= kernels::kMostMixedHeads; ++width) {
    MixingSettings s{.sizes = {1, width, width, 19, 19, 8, 8}};
    s.mix_before = s.mix_after = width;
    expect_truth<float>({"one group of " + std::to_string(width), s}, 2e-5);
  }
  // Key heads, groups before and groups after that border each other everywhere.
  for (const int64_t kv_heads : {1, 2, 3, 4, 6, 12}) {
    MixingSettings s{.sizes = {2, 12, kv_heads, 19, 19, 8, 8}};
    s.mix_before = 3, s.mix_after = 2, s.before = {2, 3};
    expect_truth<float>({std::to_string(kv_heads) + " key heads", s}, 2e-5);
  }
}

// Heads of 8 to 256: kernels take multiples of 8.
TEST(MixingGradient, TakesHeadsOfEveryWidth) {
  for (int64_t width = 8; width <= 256; width += 8) {
    MixingSettings s{.sizes = {1, 2, 2, 19, 19, width, 264 - width}};
    s.scale = 1.0 / std::sqrt(static_cast<double>(width));
    s.before = {2, 3}, s.mix_after = 2;
    expect_truth<float>({"width " + std::to_string(width), s}, 2e-5);
  }
}

// Operands of 8 bits; sums, kernels and mixes in float32. Pairs round the maps that are convolved,
// too, in the forward pass as well: its lse belongs to them.
TEST(MixingGradient, EqualsTheFormulasInBFloat16) {
  for (const int64_t tokens : {3, 97}) {
    for (const Named& named : every_stage(tokens)) {
      const MixingProblem<BFloat16> problem(named.settings);
      const MixingOutputs outputs = problem.outputs_by_formula();
      MixingOperands truth = problem.gradients_by_formula();
      const bool convolves = named.settings.before.queries > 0 || named.settings.after.queries > 0;
      for (const MixingTable<BFloat16>* table : tables<BFloat16>()) {
        const bool pairs = table->elements == 2;
        MixingOperands got = problem.gradients_by_kernels(
            pairs && convolves ? problem.outputs_by_kernels(table) : outputs, table);
        auto names = got.named(), expected = truth.named();
        for (size_t n = 0; n < names.size(); ++n) {
          // Pairs round the weights and slopes that q, k and v are products of, and tau follows q.
          // With convolutions they round the maps, too; sums that rows are divided by may be small.
          const bool rounded = n < (pairs ? 4 : 3);
          const double convolved = named.settings.renormalise ? 6e-2 : 2e-2;
          const double alone = !rounded ? 2e-5 : pairs ? 8e-3 : 4e-3;
          const double bound = pairs && convolves ? convolved : alone;
          EXPECT_LT(numbers_error(*names[n].second, *expected[n].second, 1e-2), bound)
              << table->isa << ", " << named.name << ": " << names[n].first;
        }
      }
    }
  }
}

// Logits of hundreds make weights that are denormal or 0.
TEST(MixingGradient, IsFiniteAndRightForLargeLogits) {
  MixingSettings s = stage("all four", 97);
  s.scale = 12.0;
  const MixingProblem<float> problem(s);
  const MixingOutputs outputs = problem.outputs_by_formula();
  MixingOperands truth = problem.gradients_by_formula();
  MixingOperands got = problem.gradients_by_kernels(outputs);
  auto names = got.named(), expected = truth.named();
  for (size_t n = 0; n < names.size(); ++n)  // a logit of 500 has an ulp of 3e-5
    EXPECT_LT(numbers_error(*names[n].second, *expected[n].second), 2e-3) << names[n].first;
}

using Bits = std::vector<std::vector<double>>;
Bits bits_of(MixingOperands gradients) {
  Bits all;
  for (const auto& [name, numbers] : gradients.named()) all.push_back(*numbers);
  return all;
}

// The same bits, whoever shares the work.
template <class T>
void expect_same_bits_of_threads() {
  const int threads = omp_get_max_threads();
  for (const char* name : {"all four", "talking heads", "documents", "everything", "gate weight 7",
                           "gate sigmoid_logit, mix", "groups alone", "bias both"}) {
    for (Named& named : every_stage(700)) {
      if (!named.name.starts_with(name)) continue;
      const MixingProblem<T> problem(named.settings);
      const size_t rows = static_cast<size_t>(named.settings.sizes.batch * 4 * 700);
      const MixingOutputs outputs{
          {}, std::vector<double>(rows, 6.0), std::vector<double>(rows, 1.0)};
      omp_set_num_threads(1);
      const Bits alone = bits_of(problem.gradients_by_kernels(outputs));
      for (const int count : {2, 3, 7}) {
        omp_set_num_threads(count);
        EXPECT_EQ(alone, bits_of(problem.gradients_by_kernels(outputs)))
            << named.name << ", " << count << " threads";
      }
    }
  }
  omp_set_num_threads(threads);
}

TEST(MixingGradient, DoesNotDependOnTheNumberOfThreads) { expect_same_bits_of_threads<float>(); }
TEST(MixingGradient, DoesNotDependOnTheNumberOfThreadsInBFloat16) {
  expect_same_bits_of_threads<BFloat16>();
}

// Rows [begin, end) of tokens of the one row of the batch.
std::vector<double> tokens(const std::vector<double>& x, int64_t begin, int64_t end,
                           int64_t tokens) {
  const int64_t each = std::ssize(x) / tokens;
  return {x.begin() + begin * each, x.begin() + end * each};
}

void change(std::vector<float>& x, int64_t begin, int64_t end, int64_t count) {
  const int64_t each = std::ssize(x) / count;
  for (int64_t n = begin * each; n < end * each; ++n) x[n] = 0.7f * x[n] + 0.3f;
}

// Spec 13.3, 13.5: of tokens that no row with a gradient sees, or of another document, nothing
// reaches a gradient.
void expect_isolated(MixingSettings s, int64_t border, bool by_documents) {
  const int64_t count = s.sizes.keys;
  MixingProblem<float> problem(s), other(s);
  const MixingOutputs outputs = problem.outputs_by_formula();
  if (!by_documents) {
    const int64_t each = std::ssize(problem.output_gradient_rows()) / count;
    for (MixingProblem<float>* p : {&problem, &other})
      std::fill(p->output_gradient_rows().begin() + border * each, p->output_gradient_rows().end(),
                0.0f);
  } else {
    change(other.output_gradient_rows(), border, count, count);
  }
  for (std::vector<float>* x :
       {&other.queries(), &other.keys(), &other.values(), &other.key_gates()})
    change(*x, border, count, count);
  const MixingOperands a = problem.gradients_by_kernels(outputs),
                       b = other.gradients_by_kernels(outputs);
  for (const auto member : {&MixingOperands::q, &MixingOperands::k, &MixingOperands::v,
                            &MixingOperands::gate_query, &MixingOperands::gate_key})
    EXPECT_EQ(tokens(a.*member, 0, border, count), tokens(b.*member, 0, border, count));
}

TEST(MixingGradient, IsolatesLaterTokensAndOtherDocuments) {
  MixingSettings s{.sizes = {1, 4, 2, 150, 150, 16, 16}, .lse_gradient = false};
  s.before = {6, 11}, s.after = {5, 9}, s.mix_before = s.mix_after = 4;
  for (const KernelEquation equation : {KernelEquation::eq5, KernelEquation::eq4}) {
    s.equation = equation;
    s.documents = 1;
    expect_isolated(s, 77, false);
    s.documents = 2;
    expect_isolated(s, 75, true);
  }
  s.gate = kernels::PairGate::Form::weight, s.gate_offset = 0.01, s.near = 3, s.groups = 5;
  s.bias_count = 9;
  expect_isolated(s, 75, true);
  s.documents = 1;
  expect_isolated(s, 77, false);
}

TEST(MixingGradient, NeighboursInTheBatchDoNotMatter) {
  MixingSettings s = stage("all four", 97);
  s.sizes.batch = 2;
  MixingProblem<float> problem(s), other(s);
  const MixingOutputs outputs = problem.outputs_by_formula();
  for (std::vector<float>* x : {&other.queries(), &other.keys(), &other.values()})
    change(*x, 1, 2, 2);
  const Bits a = bits_of(problem.gradients_by_kernels(outputs)),
             b = bits_of(other.gradients_by_kernels(outputs));
  for (size_t n = 0; n < a.size(); ++n)  // the first row of the batch
    EXPECT_EQ(tokens(a[n], 0, 1, 2), tokens(b[n], 0, 1, 2));
}

// O(n) memory beyond operands and gradients, in one pass over up to 16,384 tokens.
TEST(MixingGradient, MemoryIsLinearInTheTokens) {
  const int threads = omp_get_max_threads();
  omp_set_num_threads(2);
  const auto bytes = [](int64_t tokens) {
    MixingSettings s{.sizes = {1, 16, 16, tokens, tokens, 64, 64}};
    s.before = s.after = {6, 11}, s.mix_before = s.mix_after = 16;
    const std::vector<float> something(16 * 66);
    std::vector<TokenPlace> places;
    for (int64_t i = 0; i < tokens; ++i) places.push_back({0, i});
    const std::vector<Visits> visits{make_visits(s.mask, places, places, kernels::kTileSizes)};
    const kernels::KeyQueryKernel kernel{something.data(), 6, 11};
    const kernels::HeadMix mix{something.data(), 16};
    return kernels::scratch_bytes(kernels::MixingBackward<float>{
        .sizes = s.sizes, .mixing = {kernel, kernel, mix, mix}, .visits = visits});
  };
  for (const int64_t tokens : {1024, 2048, 4096, 8192}) {
    EXPECT_LT(bytes(2 * tokens), 2 * bytes(tokens) + (1 << 20)) << tokens;
  }
  EXPECT_LT(bytes(16384), int64_t{2} << 30);  // one map of the 16 heads would take 16 GiB
  omp_set_num_threads(threads);
}

TEST(MixingGradient, RefusesWhatItLacks) {
  MixingSettings s{.sizes = {1, 2, 2, 5, 5, 8, 8}};
  s.after = {2, 3}, s.renormalise = true;
  const MixingProblem<float> problem(s);
  std::vector<float> numbers(5 * 2 * 8), lse(10);
  kernels::MixingBackward<float> p{.sizes = s.sizes, .mixing = problem.mixing()};
  std::vector<TokenPlace> places;
  for (int64_t i = 0; i < 5; ++i) places.push_back({0, i});
  const std::vector<Visits> visits{make_visits(s.mask, places, places, kernels::kTileSizes)};
  p.visits = visits;
  EXPECT_ERROR(ShapeError, kernels::run(p), "needs the lse of the forward pass");
  p.lse = lse.data();
  EXPECT_ERROR(ShapeError, kernels::run(p), "need the row sums of the forward pass");
  p.mixing.kernel_after.keys = 16;
  EXPECT_ERROR(UnsupportedError, kernels::run(p), "at most 8 queries x 15 keys");
  p.mixing = {};
  p.dgate_key = numbers.data();
  EXPECT_ERROR(ShapeError, kernels::run(p), "for queries and keys; got one");
  p.dgate_key = nullptr;
  p.rule.gate = {.form = kernels::PairGate::Form::weight, .columns = 66};
  EXPECT_ERROR(ShapeError, kernels::run(p), "1 to 65 columns", "66");
}

}  // namespace
}  // namespace fovea::testing::mixing_gradient_test
