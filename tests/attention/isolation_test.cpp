// NaN in one token reaches what depends on it, on every path and in both directions (spec 9.10).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <set>

#include "fovea/attention/stages.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/every_isa.h"
#include "tests/support/gradcheck.h"

namespace fovea::isolation_test {
namespace {

using namespace fovea::testing;

constexpr int64_t kTokens = 90, kBad = 70;

struct Numbers {
  at::Tensor out;
  std::vector<at::Tensor> grads;  // of q, k, v
  PathTaken path;
};

// Element 0 of token kBad of "q", "k", "v" or the gradient of the output is NaN.
Numbers run(const AttentionSpec& spec, const AttentionInputs& given,
            const AttentionContext& context, Path path, const std::string& bad) {
  AttentionInputs in = given.to(given.q.scalar_type());
  at::Tensor grad =
      random_normal({in.q.size(0), spec.output_heads(), kTokens, spec.value_width()}, 5)
          .to(in.q.scalar_type());
  for (const auto& [name, x] :
       {std::pair{"q", &in.q}, {"k", &in.k}, {"v", &in.v}, {"gradient", &grad}}) {
    if (bad == name)
      x->select(2, kBad).select(2, 0).fill_(std::numeric_limits<double>::quiet_NaN());
  }
  in = in.with_gradient();
  const AttentionResult r = attention(spec, in.q, in.k, in.v, in.tensors, context, path);
  const auto grads = torch::autograd::grad({r.out_bhte}, {in.q, in.k, in.v}, {grad});
  return {r.out_bhte.detach(), grads, r.path};
}

// Tokens [begin, end) as in `clean`, and numbers.
void expect_as_clean(const at::Tensor& got, const at::Tensor& clean, int64_t begin, int64_t end,
                     const std::string& what) {
  const at::Tensor a = got.narrow(2, begin, end - begin), b = clean.narrow(2, begin, end - begin);
  EXPECT_TRUE(a.isfinite().all().item<bool>()) << what;
  // Where the one is the reference's and the other a kernel's: of the largest number.
  const double size = std::max(0.1, b.numel() > 0 ? b.abs().max().item<double>() : 0.0);
  EXPECT_TRUE(a.allclose(b, 1e-5, 1e-5 * size)) << what;
}

void expect_isolated(const AttentionSpec& spec, const AttentionInputs& in,
                     const AttentionContext& context, Path path, int64_t document,
                     const std::string& what, std::set<std::string>& paths) {
  const Numbers clean = run(spec, in, context, path, "");
  const std::string name(enum_name(clean.path.name));
  paths.insert(name);
  for (const std::string bad : {"q", "k", "v", "gradient"}) {
    const std::string where = what + ", " + name + ", " + bad;
    const Numbers got = run(spec, in, context, path, bad);
    if (bad == "gradient") {
      EXPECT_TRUE(got.out.equal(clean.out)) << where;
    } else {
      EXPECT_TRUE(got.out.select(2, kBad).isnan().any().item<bool>()) << where;
    }
    expect_as_clean(got.out, clean.out, 0, kBad, where + ": out");
    expect_as_clean(got.grads[0], clean.grads[0], 0, document, where + ": dq");
    expect_as_clean(got.grads[1], clean.grads[1], 0, document, where + ": dk");
    expect_as_clean(got.grads[2], clean.grads[2], 0, document, where + ": dv");
  }
}

AttentionContext documents() { return packed_context({40, 1, 20, 29}); }

TEST(Isolation, NonFiniteTokensStayInTheirDocumentUnderEverySpecAndPath) {
  std::set<std::string> paths;
  for (const auto& [name, spec] : all_specs()) {
    if (!spec.mask.causal) continue;
    const AttentionInputs in = random_inputs(spec, 1, kTokens);
    for (const Path path : {Path::reference, Path::automatic})
      expect_isolated(spec, in, documents(), path, 61, name, paths);
    expect_isolated(spec, in.to(at::kFloat), documents(), Path::automatic, 61, name, paths);
  }
  for (const char* path : {"reference", "torch_sdpa", "fused"}) EXPECT_TRUE(paths.contains(path));
}

AttentionSpec listed(const std::function<void(AttentionSpec&)>& change) {
  AttentionSpec spec = small_spec(4, 2, 16);
  change(spec);
  return spec;
}

TEST(Isolation, NonFiniteTokensStayInTheirDocumentInGroupsAndLists) {
  const AttentionSpec specs[] = {
      listed([](auto& s) {
        s.focus.gate = FocusSpec::Gate::hard;
        s.focus.groups = 6, s.focus.top_k = 1, s.focus.window = 7, s.focus.sinks = 1;
      }),
      listed([](auto& s) { s.routing = {.clusters = 3, .keep = 9}; }), listed([](auto& s) {
        s.blocks.size = 8;
        for (int64_t n = 0; n < 12; ++n) s.blocks.pairs.insert(s.blocks.pairs.end(), {n, n, n, 0});
      })};
  std::set<std::string> paths;
  for (const AttentionSpec& spec : specs) {
    const AttentionInputs in = random_inputs(spec, 1, kTokens);
    expect_isolated(spec, in, documents(), Path::reference, 61, describe_pipeline(spec), paths);
    expect_isolated(spec, in.to(at::kFloat), documents(), Path::automatic, 61,
                    describe_pipeline(spec), paths);
  }
  EXPECT_TRUE(paths.contains("grouped"));
}

// Later tokens, and those that a window has left behind, are masked keys.
TEST(Isolation, NonFiniteKeysReachNoRowBeforeThemAndNoneBeyondAWindow) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const Path path : {Path::reference, Path::automatic}) {
      AttentionSpec spec = small_spec(4, 2, 16);
      spec.mask.window = 6;
      const AttentionInputs in = random_inputs(spec, 1, kTokens).to(dtype);
      const Numbers clean = run(spec, in, {}, path, "");
      for (const std::string bad : {"k", "v"}) {
        const Numbers got = run(spec, in, {}, path, bad);
        for (const auto& [begin, end] :
             {std::pair<int64_t, int64_t>{0, kBad}, {kBad + 6, kTokens}}) {
          expect_as_clean(got.out, clean.out, begin, end, bad + " out");
          expect_as_clean(got.grads[0], clean.grads[0], begin, end, bad + " dq");
        }
        for (const size_t n : {size_t{1}, size_t{2}}) {
          expect_as_clean(got.grads[n], clean.grads[n], 0, kBad - 5, bad + " dk or dv");
          expect_as_clean(got.grads[n], clean.grads[n], kBad + 6, kTokens, bad + " dk or dv");
        }
        EXPECT_TRUE(got.out.narrow(2, kBad, 6).isnan().any(-1).all().item<bool>());
      }
    }
  }
}

TEST(Isolation, ADecodedTokenDoesNotNoticeKeysBeyondItsWindow) {
  const at::NoGradGuard no_gradient;
  AttentionSpec spec = small_spec(4, 2, 16);
  spec.mask.window = 6;
  spec.mask.sinks = 2;
  const AttentionInputs in = random_inputs(spec, 1, kTokens).to(at::kFloat);
  const at::Tensor q = in.q.narrow(2, kTokens - 1, 1), v = in.v.clone();
  const at::Tensor clean = attention(spec, q, in.k, v).out_bhte;
  v.select(2, kTokens - 7).fill_(std::numeric_limits<double>::quiet_NaN());
  v.select(2, 2).fill_(std::numeric_limits<double>::infinity());
  EXPECT_TRUE(attention(spec, q, in.k, v).out_bhte.equal(clean));
  v.select(2, 1).fill_(std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(attention(spec, q, in.k, v).out_bhte.isnan().all().item<bool>());
}

// Which rows [b, t] hold what is no number.
at::Tensor broken_rows(const AttentionSpec& spec, const AttentionInputs& in, Path path) {
  return attention(spec, in.q, in.k, in.v, in.tensors, {}, path).out_bhte.isnan().any(-1).any(1);
}

// No gate turns what is no number into one: the same rows are broken as in the reference, for many
// queries with and without gradient (strips) and for few (decoding). Kernels of one head break
// every row that sees the token kBad, local ones too (isolation.h).
void expect_broken_as_reference(const AttentionSpec& spec, const AttentionInputs& in,
                                const std::string& what) {
  at::Tensor truth = broken_rows(spec, in, Path::reference);
  EXPECT_TRUE(truth.any().item<bool>()) << what;
  EXPECT_FALSE(truth.all().item<bool>()) << what;
  if (spec.head_mix == HeadMixSpec{}) truth.narrow(1, kBad, spec.mask.window).fill_(true);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    AttentionInputs narrow = in.to(dtype);
    narrow.tensors = in.to(at::kFloat).tensors;
    EXPECT_TRUE(broken_rows(spec, narrow, Path::fused).equal(truth)) << what;
    EXPECT_TRUE(broken_rows(spec, narrow.with_gradient(), Path::fused).equal(truth)) << what;
    constexpr int64_t kFew = 8;
    for (const int64_t end : {kTokens, kBad + 3}) {
      AttentionInputs few = narrow;
      few.k = narrow.k.narrow(2, 0, end), few.v = narrow.v.narrow(2, 0, end);
      few.q = narrow.q.narrow(2, end - kFew, kFew);
      few.tensors = narrow.tensors_of(0, end);
      // The first rows have no earlier queries here.
      EXPECT_TRUE(
          broken_rows(spec, few, Path::fused).narrow(1, 4, 4).equal(truth.narrow(1, end - 4, 4)))
          << what << ", " << end << " keys";
    }
  }
}

TEST(Isolation, NoGateHidesAssignmentsOrStrengthsThatAreNoNumbers) {
  using Gate = FocusSpec::Gate;
  using Mix = HeadMixSpec::Kind;
  for (const bool mixes : {false, true}) {
    for (const Gate gate :
         {Gate::mul, Gate::log, Gate::logsig, Gate::identity, Gate::straight_through}) {
      AttentionSpec spec = small_spec(4, 2, 16);
      spec.focus = {.gate = gate, .groups = 5, .top_k = 1, .window = 7, .sinks = 2};
      spec.mask.window = 15;  // rows beyond it see no such key
      if (mixes)
        spec.multi_token = {.before = {3, 5}, .after = {2, 3}}, spec.head_mix = {Mix::full};
      const std::string what = std::string(enum_name(gate)) + (mixes ? ", mixed" : "");
      const AttentionInputs in = random_inputs(spec, 1, kTokens);
      for (const double bad :
           {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::quiet_NaN()}) {
        AttentionInputs broken = in.to(at::kDouble);
        broken.tensors.groups_bsk.select(1, kBad).select(1, 3).fill_(bad);
        expect_broken_as_reference(spec, broken, what + ", assignment");
        if (gate != Gate::logsig) continue;
        broken = in.to(at::kDouble);
        broken.tensors.focus_strength.fill_(bad);  // the first rows see local keys alone
        expect_broken_as_reference(spec, broken, what + ", strength");
      }
    }
  }
}

TEST(ForcedIsaOfGates, EveryInstructionSetOfThisMachineKeepsWhatIsNoNumber) {
  expect_tests_pass_on_every_isa("Isolation.NoGate*");
}

}  // namespace
}  // namespace fovea::isolation_test
