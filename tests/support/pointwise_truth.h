// The attention kernels against the formulas: which problems, and how close.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/support/pointwise_problem.h"

namespace fovea::testing {

struct Tolerance {
  double forward, backward;
};
template <class T>
inline constexpr Tolerance kTolerance{1e-5, 1e-4};
template <>
inline constexpr Tolerance kTolerance<BFloat16>{1e-2, 3e-2};  // a number has 8 bits: 4e-3 each

template <class T>
inline void expect_truth(const PointwiseSettings& settings, const std::string& what) {
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
  EXPECT_LT(numbers_error(got.dgate_query, truth.dgate_query), backward) << what;
  EXPECT_LT(numbers_error(got.dgate_key, truth.dgate_key), backward) << what;
}

struct Named {
  std::string name;
  PointwiseSettings settings;
};

// One problem a stage, and their combinations.
inline std::vector<Named> every_stage(int64_t tokens, int64_t width) {
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
  using Form = kernels::PairGate::Form;
  const auto gate = [](Form form, int64_t columns) {
    const float offset = form == Form::weight || form == Form::capped_weight ? 1e-6f : -0.7f;
    return kernels::PairGate{.form = form,
                             .offset = offset,
                             .least = offset,  // factors are positive
                             .window = 11,
                             .sinks = 2,
                             .columns = columns};
  };
  const auto all_but_diagonal = [](kernels::PairGate g) {
    g.window = 1, g.sinks = 0;
    return g;
  };
  add("weight gate", [&](auto& s) { s.gate = gate(Form::weight, 8); });
  add("weight gate without window",
      [&](auto& s) { s.gate = all_but_diagonal(gate(Form::weight, 3)); });
  add("weight gate, documents",
      [&](auto& s) { s.gate = gate(Form::weight, 4), s.documents = 2, s.mask.window = 40; });
  add("weight gate both ways",
      [&](auto& s) { s.gate = all_but_diagonal(gate(Form::weight, 5)), s.mask.causal = false; });
  add("sigmoid weight gate", [&](auto& s) { s.gate = gate(Form::sigmoid_weight, 9); });
  add("sigmoid logit gate", [&](auto& s) { s.gate = gate(Form::sigmoid_logit, 8); });
  add("capped weight gate", [&](auto& s) { s.gate = gate(Form::capped_weight, 12); });
  for (const Form form :
       {Form::weight, Form::capped_weight, Form::sigmoid_weight, Form::sigmoid_logit}) {
    add("gate and everything", [&](auto& s) {
      s.gate = gate(form, 8);
      s.tau = s.alibi = s.bias = s.sink = true;
      s.soft_cap = 2.0, s.dropout = 0.2, s.documents = 2, s.mask.window = 30, s.mask.sinks = 1;
    });
  }
  add("everything", [](auto& s) {
    s.tau = s.alibi = s.bias = s.sink = true;
    s.soft_cap = 2.0, s.dropout = 0.2, s.documents = 2, s.mask.window = 30, s.mask.sinks = 1;
  });
  return all;
}

}  // namespace fovea::testing
