// The truth of the mixing kernels against central differences of its own forward pass.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/mixing_truth.h"

namespace fovea::testing::mixing_truth_test {
namespace {

// Random operands, kernels and mixes far from the identity.
MixingOperands drawn(const MixingSettings& settings, Rng& random) {
  const kernels::AttentionSizes& s = settings.sizes;
  const auto normal = [&random](int64_t count, double size) {
    std::vector<double> x(static_cast<size_t>(count));
    for (double& element : x) element = size * random.normal();
    return x;
  };
  MixingOperands x;
  x.q = normal(s.batch * s.queries * s.heads * s.head_dim, 1.0);
  x.k = normal(s.batch * s.keys * s.kv_heads * s.head_dim, 1.0);
  x.v = normal(s.batch * s.keys * s.kv_heads * s.value_dim, 1.0);
  x.tau = normal(settings.tau ? s.batch * s.queries : 0, 0.1);
  for (double& tau : x.tau) tau += 2.0;
  x.sink = normal(settings.sink ? s.heads : 0, 1.0);
  x.kernel_before = normal(s.heads * settings.before.queries * settings.before.keys, 0.4);
  x.kernel_after = normal(s.heads * settings.after.queries * settings.after.keys, 0.4);
  x.mix_before = normal(s.heads * settings.mix_before, 0.5);
  x.mix_after = normal(s.heads * settings.mix_after, 0.5);
  const int64_t columns = settings.gated() ? settings.gate_columns : 0;
  x.gate_query = normal(s.batch * s.queries * columns, 0.2);
  x.gate_key = normal(s.batch * s.keys * columns, 0.2);
  for (std::vector<double>* factors : {&x.gate_query, &x.gate_key})
    for (double& factor : *factors) factor = std::abs(factor) + 0.1;
  x.bias = normal(s.heads * settings.bias_count, 0.5);
  return x;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (size_t n = 0; n < a.size(); ++n) sum += b[n] == 0.0 ? 0.0 : a[n] * b[n];
  return sum;
}

// Gradients summed as an optimizer needs them: over the batch, tau over the heads.
std::vector<double> summed(const std::string& name, const std::vector<double>& gradient,
                           size_t count, const kernels::AttentionSizes& s) {
  if (gradient.size() == count) return gradient;
  std::vector<double> sum(count, 0.0);
  for (size_t n = 0; n < gradient.size(); ++n) {
    const auto queries = static_cast<size_t>(s.queries), heads = static_cast<size_t>(s.heads);
    const size_t row = n / (queries * heads) * queries + n % queries;
    sum[name == "tau" ? row : n % count] += gradient[n];
  }
  return sum;
}

void expect_central_differences(const MixingSettings& settings, const std::string& what) {
  Rng random(7);
  MixingOperands x = drawn(settings, random);
  MixingOutputs outputs = mixing_outputs(settings, x);
  std::vector<double> dout(outputs.out.size()), dlse(outputs.lse.size());
  for (double& d : dout) d = random.normal();
  for (size_t n = 0; n < dlse.size(); ++n)
    dlse[n] = std::isfinite(outputs.lse[n]) ? random.normal() : 0.0;
  const auto loss = [&] {
    const MixingOutputs y = mixing_outputs(settings, x);
    return dot(y.out, dout) + dot(y.lse, dlse);
  };
  MixingOperands gradients = mixing_gradients(settings, x, dout, dlse);
  auto operands = x.named(), found = gradients.named();
  for (size_t o = 0; o < operands.size(); ++o) {
    std::vector<double>& operand = *operands[o].second;
    const std::vector<double> gradient =
        summed(operands[o].first, *found[o].second, operand.size(), settings.sizes);
    const size_t every = 1 + operand.size() / 24;  // some elements of each
    for (size_t n = 0; n < operand.size(); n += every) {
      const double kept = operand[n], step = 1e-5;
      operand[n] = kept + step;
      const double above = loss();
      operand[n] = kept - step;
      const double below = loss();
      operand[n] = kept;
      const double difference = (above - below) / (2.0 * step);
      EXPECT_NEAR(gradient[n], difference, 1e-6 * std::max(1.0, std::abs(difference)))
          << what << ": " << operands[o].first << " " << n;
    }
  }
}

// Spec 3.2 to 3.4, 2, 10.2; M-1, M-3, M-9, M-11, M-16.
TEST(MixingTruth, GradientsAreThoseOfTheForwardPassForEveryStage) {
  const auto check = [](const std::string& what,
                        const std::function<void(MixingSettings&)>& change) {
    MixingSettings s{.sizes = {2, 4, 2, 9, 9, 3, 2}};
    change(s);
    expect_central_differences(s, what);
  };
  const auto everything = [](MixingSettings& s) {
    s.before = {3, 4}, s.after = {2, 5};
    s.mix_before = 4, s.mix_after = 2;
  };
  check("convolution before", [](auto& s) { s.before = {3, 5}; });
  check("convolution after", [](auto& s) { s.after = {3, 4}; });
  check("mix before", [](auto& s) { s.mix_before = 4; });
  check("mix after", [](auto& s) { s.mix_after = 2; });
  check("all four", everything);
  check("documents", [&](auto& s) { everything(s), s.documents = 2; });
  check("window", [&](auto& s) { everything(s), s.mask.window = 4; });
  check("eq4", [&](auto& s) {
    everything(s), s.equation = kernels::KernelEquation::eq4, s.documents = 2, s.mask.window = 3;
  });
  check("both ways", [&](auto& s) { everything(s), s.mask.causal = false; });
  check("renormalised rows", [&](auto& s) { everything(s), s.renormalise = true; });
  check("fewer queries", [&](auto& s) { everything(s), s.sizes.queries = 4; });
  using Form = kernels::PairGate::Form;
  for (const Form form :
       {Form::weight, Form::sigmoid_weight, Form::sigmoid_logit, Form::log_sigmoid}) {
    check("gate", [&](auto& s) {
      everything(s), s.gate = form, s.gate_offset = 0.05, s.near = 2, s.sinks = 1;
    });
  }
  check("groups", [&](auto& s) { everything(s), s.groups = 4, s.near = 2; });
  check("biases", [&](auto& s) { everything(s), s.alibi = true, s.bias_count = 5; });
  check("tau, cap, sink, dropout", [&](auto& s) {
    everything(s);
    s.tau = s.sink = true, s.soft_cap = 1.5, s.dropout = 0.3;
  });
}

// Spec 13.7: a kernel with a single 1 shifts the masked logits.
TEST(MixingTruth, AnImpulseShiftsTheLogits) {
  MixingSettings s{.sizes = {1, 1, 1, 6, 6, 2, 2}, .before = {2, 3}};
  Rng random(3);
  MixingOperands x = drawn(s, random);
  x.kernel_before.assign(6, 0.0);
  x.kernel_before[0] = 1.0;  // of the query before, the key before
  const MixingOutputs shifted = mixing_outputs(s, x);
  s.before = {};
  const MixingOutputs plain = mixing_outputs(s, x);
  // Row i then has the logits of row i - 1 at keys 1 ... i and 0 at key 0.
  for (size_t i = 1; i < 6; ++i)
    EXPECT_NEAR(std::exp(shifted.lse[i]), 1.0 + std::exp(plain.lse[i - 1]), 1e-9) << i;
}

}  // namespace
}  // namespace fovea::testing::mixing_truth_test
