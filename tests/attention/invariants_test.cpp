// The invariants of the specification that hold for every mechanism and path: neutral settings
// (13.1), causality (13.3), packing (13.5, 9.10), determinism.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "fovea/attention/attention.h"
#include "fovea/attention/mechanisms/focal.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/gradcheck.h"
#include "tests/support/scalar_attention.h"

namespace fovea::invariants_test {
namespace {

using namespace fovea::testing;

constexpr Path kPaths[] = {Path::automatic, Path::reference};

at::Tensor output(const AttentionSpec& spec, const AttentionInputs& in,
                  const AttentionContext& context, Path path) {
  return attention(spec, in.q, in.k, in.v, in.tensors, context, path).out_bhte;
}

// 13.1: a setting that restricts or changes nothing at this length is plain attention.
TEST(NeutralSettings, EqualPlainAttention) {
  const int64_t t = 24;
  std::vector<NamedSpec> neutral;
  const auto add = [&neutral](const char* name, const std::function<void(AttentionSpec&)>& change) {
    neutral.push_back({name, small_spec()});
    change(neutral.back().spec);
  };
  add("t = 1", [](AttentionSpec& s) { s.temperature.value = 1.0; });
  add("cap far away", [](AttentionSpec& s) { s.soft_cap = 1e8; });
  add("window >= n", [&](AttentionSpec& s) { s.mask.window = t; });
  add("window with all as sinks", [&](AttentionSpec& s) { s.mask.window = 1, s.mask.sinks = t; });
  add("strided with w >= n", [&](AttentionSpec& s) {
    s.mask = {.window = t, .sparsity = MaskRule::Sparsity::strided, .stride = 7};
  });
  add("strided with stride 1",
      [](AttentionSpec& s) { s.mask = {.sparsity = MaskRule::Sparsity::strided, .stride = 1}; });
  add("fixed with one block",
      [&](AttentionSpec& s) { s.mask = {.sparsity = MaskRule::Sparsity::fixed, .block = t}; });
  add("fixed, all summary", [](AttentionSpec& s) {
    s.mask = {.sparsity = MaskRule::Sparsity::fixed, .block = 4, .summary = 4};
  });
  add("t5 table of zeros", [](AttentionSpec& s) { s.bias = {BiasSpec::Kind::t5, 8, 16}; });
  add("sink logit far below", [](AttentionSpec& s) { s.sink_logit = true; });
  const AttentionSpec plain = small_spec();
  AttentionInputs in = random_inputs(plain, 2, t);
  const at::Tensor truth = scalar_attention(plain, in).out;
  for (const auto& [name, spec] : neutral) {
    if (spec.bias.kind == BiasSpec::Kind::t5)
      in.tensors.bias_table = at::zeros({8, 4}, at::kDouble);
    if (spec.sink_logit) in.tensors.sink_logit_h = at::full({4}, -1e4, at::kDouble);
    for (const Path path : kPaths)
      EXPECT_LT(relative_error(output(spec, in, {}, path), truth), 1e-12) << name;
    in.tensors = {};
  }
}

// 13.3, and design section 5: change tokens after i, outputs up to i are bit-identical.
TEST(Causality, LaterTokensDoNotChangeABitOfEarlierOutputsOnAnyPath) {
  const int64_t t = 70;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [name, spec] : all_specs()) {
      for (const int64_t packed : {0, 1}) {
        const AttentionContext context = packed ? packed_context({40, 30}) : AttentionContext{};
        const AttentionInputs in = random_inputs(spec, 1, t).to(dtype);
        for (const int64_t i : {0, 33, 50}) {
          AttentionInputs changed = in.to(dtype);
          for (const at::Tensor& x : {changed.q, changed.k, changed.v})
            x.narrow(2, i + 1, t - i - 1).mul_(-3.0).add_(0.7);
          for (const Path path : kPaths) {
            const at::Tensor before = output(spec, in, context, path),
                             after = output(spec, changed, context, path);
            EXPECT_TRUE(before.narrow(2, 0, i + 1).equal(after.narrow(2, 0, i + 1)))
                << name << " after " << i;
            EXPECT_FALSE(before.equal(after)) << name;
          }
        }
      }
    }
  }
}

at::Tensor focal_output(TemperatureSpec::Form form, const at::Tensor& x, Path path) {
  AttentionSpec spec = small_spec(2, 2, 8);
  spec.temperature.kind = TemperatureSpec::Kind::learned;
  spec.temperature.form = form;
  const TemperatureParameters parameters{random_normal({8}, 9, 0.2).to(at::kFloat),
                                         at::full({}, 2.0, at::kFloat)};
  AttentionInputs in;
  in.q = in.k = in.v = x.unsqueeze(1).expand({1, 2, x.size(1), 8});
  in.tensors.tau_bt = temperature_rows(spec.temperature, 8, parameters, x, {}).tau_bt;
  return output(spec, in, {}, path);
}

// 13.3: the learned temperature is computed from the same tokens. `sequence` must fail (F-1),
// everything else must not.
TEST(Causality, SequenceTemperatureLeaksTheFutureAndTheOtherFormsDoNot) {
  using Form = TemperatureSpec::Form;
  const at::Tensor x = random_normal({1, 20, 8}, 1).to(at::kFloat);
  at::Tensor changed = x.clone();
  changed.narrow(1, 12, 8).mul_(-2.0);
  for (const Path path : kPaths) {
    for (const Form form : {Form::prefix, Form::token, Form::global}) {
      EXPECT_TRUE(focal_output(form, x, path)
                      .narrow(2, 0, 12)
                      .equal(focal_output(form, changed, path).narrow(2, 0, 12)));
    }
    EXPECT_FALSE(focal_output(Form::sequence, x, path)
                     .narrow(2, 0, 12)
                     .equal(focal_output(Form::sequence, changed, path).narrow(2, 0, 12)));
  }
}

// 13.5, 9.10: documents packed into a row give what they give alone.
TEST(Packing, EqualsRunningTheDocumentsAlone) {
  const std::vector<int64_t> lengths{37, 1, 40};
  for (const auto& [name, spec] : all_specs()) {
    const AttentionInputs in = random_inputs(spec, 2, 78);
    for (const Path path : kPaths) {
      const at::Tensor packed = output(spec, in, packed_context(lengths), path);
      int64_t begin = 0;
      for (const int64_t n : lengths) {
        const AttentionInputs alone = in.tokens(begin, n);
        EXPECT_LT(relative_error(packed.narrow(2, begin, n), output(spec, alone, {}, path)), 1e-12)
            << name;
        begin += n;
      }
    }
  }
}

// 13.5, design section 5: change document 1, document 2's outputs and gradients are bit-identical.
TEST(Packing, ADocumentsOutputsAndGradientsDoNotNoticeAnotherDocument) {
  const int64_t first = 40, second = 38;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [name, spec] : all_specs()) {
      for (const Path path : kPaths) {
        const auto run = [&](double factor) {
          AttentionInputs in = random_inputs(spec, 1, first + second).to(dtype);
          for (const at::Tensor& x : {in.q, in.k, in.v}) x.narrow(2, 0, first).mul_(factor);
          in = in.with_gradient();
          const at::Tensor out = output(spec, in, packed_context({first, second}), path);
          const at::Tensor probe = random_normal({second, spec.value_width()}, 3).to(dtype);
          const auto grads =
              gradients((out.narrow(2, first, second) * probe).sum(), {in.q, in.k, in.v});
          std::vector<at::Tensor> parts{out.detach().narrow(2, first, second)};
          for (const at::Tensor& grad : grads) {
            EXPECT_TRUE(grad.narrow(2, 0, first).eq(0.0).all().item<bool>()) << name;
            parts.push_back(grad.narrow(2, first, second));
          }
          return parts;
        };
        const auto a = run(1.0), b = run(-5.3);
        for (size_t n = 0; n < a.size(); ++n)
          EXPECT_TRUE(a[n].equal(b[n])) << name << " part " << n;
      }
    }
  }
}

// Positions may be left out: then they count from the start of each document.
TEST(Packing, PositionsFollowFromTheDocuments) {
  for (const auto& [name, spec] : all_specs()) {
    const AttentionInputs in = random_inputs(spec, 1, 30);
    const AttentionContext given = packed_context({11, 19});
    AttentionContext derived;
    derived.key_documents_bs = given.key_documents_bs;
    for (const Path path : kPaths)
      EXPECT_TRUE(output(spec, in, given, path).equal(output(spec, in, derived, path))) << name;
  }
}

TEST(Determinism, TwoRunsAndAnyNumberOfThreadsGiveTheSameBits) {
  const int threads = at::get_num_threads();
  for (const auto& [name, spec] : all_specs()) {
    const AttentionInputs in = random_inputs(spec, 2, 64).to(at::kFloat);
    at::set_num_threads(1);
    const at::Tensor one = output(spec, in, packed_context({40, 24}), Path::automatic);
    at::set_num_threads(2);
    const at::Tensor two = output(spec, in, packed_context({40, 24}), Path::automatic);
    EXPECT_TRUE(one.equal(two)) << name;
    EXPECT_TRUE(two.equal(output(spec, in, packed_context({40, 24}), Path::automatic))) << name;
  }
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace fovea::invariants_test
