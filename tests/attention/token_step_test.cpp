// Attention of one token on the rows of a cache against cached_attention() and the reference, with
// every instruction set that this machine has: the program starts itself with FOVEA_ISA forced.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/decode/token_step.h"

#include <gtest/gtest.h>

#include <functional>

#include "fovea/attention/decode/cached_attention.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/every_isa.h"
#include "tests/support/gradcheck.h"

namespace fovea::token_step_test {
namespace {

using namespace fovea::testing;
using Mix = HeadMixSpec::Kind;

AttentionSpec mixed_spec(bool convolutions) {
  AttentionSpec spec = small_spec(6, 2, 16);
  if (convolutions) spec.multi_token = {.before = {6, 11}, .after = {3, 4}};
  spec.head_mix = {Mix::full, Mix::groups, 3};
  return spec;
}

// Every gate of Focus with mixed logits, and soft gates with logits of one head.
std::vector<NamedSpec> focused_token_specs() {
  std::vector<NamedSpec> all;
  const auto add_all = [&](const std::string& name, const AttentionSpec& base) {
    for (auto [gate, spec] : focused_specs(base)) {
      if (!spec.mask.causal) continue;
      if (spec.focus.gate == FocusSpec::Gate::hard && spec.head_mix == HeadMixSpec{}) continue;
      all.push_back({name + ", " + gate, spec});
    }
  };
  AttentionSpec base = mixed_spec(true);
  add_all("convolutions and mixes", base);
  base.mask.window = 12, base.sink_logit = true, base.multi_token.renormalise = true;
  base.multi_token.equation = MultiTokenSpec::Equation::eq4;
  add_all("convolutions and mixes by Eq. 4 in a window", base);
  base = mixed_spec(false);
  base.temperature = {.kind = TemperatureSpec::Kind::learned, .form = TemperatureSpec::Form::token};
  base.kv_shift.keys = true, base.soft_cap = 2.0;
  add_all("mixes, learned temperature, shifted keys, capped", base);
  base = small_spec(6, 2, 16);
  add_all("no mix", base);
  base.mask.window = 12;
  add_all("no mix in a window", base);
  base = mixed_spec(true);
  base.focus = {.gate = FocusSpec::Gate::hard, .groups = 4, .top_k = 3, .window = 3};
  all.push_back({"hard Focus that keeps every pair", base});
  return all;
}

std::vector<NamedSpec> token_specs() {
  std::vector<NamedSpec> all;
  const auto add = [&](const char* name, const std::function<void(AttentionSpec&)>& change) {
    AttentionSpec spec = small_spec(6, 2, 16);
    change(spec);
    all.push_back({name, spec});
  };
  const auto convolve = [](AttentionSpec& s) {
    s.multi_token = {.before = {6, 11}, .after = {3, 4}};
  };
  add("plain", [](auto&) {});
  add("kv shift", [](auto& s) { s.kv_shift = {.keys = true, .values = true}; });
  add("shifted keys in a window, with a sink logit", [](auto& s) {
    s.kv_shift.keys = s.sink_logit = true;
    s.mask.window = 9;
  });
  add("convolutions", convolve);
  add("convolutions in a window", [&](auto& s) { convolve(s), s.mask.window = 12; });
  add("head mixes, capped", [](auto& s) {
    s.head_mix = {Mix::full, Mix::groups, 3}, s.soft_cap = 2.0;
  });
  add("convolutions, t5", [&](auto& s) {
    convolve(s);
    s.bias = {BiasSpec::Kind::t5, 8, 16};
  });
  add("head mix, alibi, window", [](auto& s) {
    s.head_mix.after = Mix::full, s.bias.kind = BiasSpec::Kind::alibi, s.mask.window = 12;
  });
  add("everything", [&](auto& s) {
    convolve(s);
    s.multi_token.equation = MultiTokenSpec::Equation::eq4;
    s.multi_token.renormalise = s.sink_logit = true;
    s.head_mix = {Mix::full, Mix::full, 0};
    s.kv_shift = {.keys = true, .values = true};
    s.head_output.norm = HeadOutputSpec::Norm::rms;
  });
  const auto learn_temperature = [](AttentionSpec& s) {
    s.temperature = {.kind = TemperatureSpec::Kind::learned, .form = TemperatureSpec::Form::token};
  };
  add("learned temperature, convolutions", [&](auto& s) { learn_temperature(s), convolve(s); });
  add("learned temperature, head mix, shifted keys", [&](auto& s) {
    learn_temperature(s);
    s.head_mix.before = Mix::full, s.kv_shift.keys = true;
  });
  add("learned temperature, shifted values", [&](auto& s) {
    learn_temperature(s);
    s.kv_shift.values = true;
  });
  for (const auto& mixed : focused_token_specs()) all.push_back(mixed);
  return all;
}

template <class T>
kernels::HeadRows<T> heads(const at::Tensor& x_bh1d) {
  return {static_cast<T*>(x_bh1d.data_ptr()), x_bh1d.stride(0), x_bh1d.stride(1), x_bh1d.stride(2)};
}

template <class T>
at::Tensor attend(TokenStep& attention, AttentionCache& cache, const AttentionInputs& token) {
  const auto compact = [](const at::Tensor& x) { return x.defined() ? x.contiguous() : x; };
  const auto floats = [](const at::Tensor& x) {
    return x.defined() ? x.const_data_ptr<float>() : nullptr;
  };
  const at::Tensor q = token.q.contiguous(), k = token.k.contiguous(), v = token.v.contiguous(),
                   out = at::empty_like(q);
  const at::Tensor tau = compact(token.tensors.tau_bt), groups = compact(token.tensors.groups_bsk),
                   members = compact(token.tensors.members_bs),
                   &strength = token.tensors.focus_strength;
  attention.attend<T>(
      cache, token.tensors,
      {.q = heads<const T>(q),
       .k = heads<const T>(k),
       .v = heads<const T>(v),
       .out = heads<T>(out),
       .tau = floats(tau),
       .focus = {.groups = floats(groups),
                 .members = members.defined() ? members.const_data_ptr<int64_t>() : nullptr,
                 .strength = strength.defined() ? strength.item<float>() : 0.0f}});
  return out;
}

/// `bias` outlives the result.
TokenStep token_step(const AttentionSpec& spec, const DecodeBias& bias, const AttentionInputs& in) {
  EXPECT_NE(token_form(spec).form, TokenForm::operations);
  return {spec, decode_rule(spec, bias, in.tensors.sink_logit_h)};
}

template <class T>
void expect_cached_attention(at::ScalarType dtype) {
  constexpr int64_t kText = 40;
  for (const auto& [name, spec] : token_specs()) {
    AttentionInputs in = random_inputs(spec, 2, kText).to(dtype);
    in.tensors = random_inputs(spec, 2, kText).to(at::kFloat).tensors;
    const DecodeBias bias = decode_bias(spec, in.tensors.bias_table, at::kCPU);
    TokenStep attention = token_step(spec, bias, in);
    AttentionCache cache(cache_streams(spec, dtype), 2, kText), other = cache.fork();
    const auto expect_equal = [&](int64_t at) {
      const AttentionInputs token = in.tokens(at, 1);
      const at::Tensor got = attend<T>(attention, cache, token),
                       expected = cached_attention(spec, other, token.q, token.k, token.v,
                                                   token.tensors, Path::automatic)
                                      .out_bhte;
      // A learned strength is a factor here, a column of factors there.
      if (spec.focus.reads_strength()) {
        EXPECT_LE(relative_error(got, expected), dtype == at::kFloat ? 1e-6 : 1e-2)
            << name << ", token " << at;
      } else {
        EXPECT_TRUE(at::equal(got, expected)) << name << ", token " << at;
      }
    };
    for (int64_t at = 0; at < 30; ++at) expect_equal(at);
    for (AttentionCache* both : {&cache, &other}) both->truncate(30 - 1);
    for (int64_t at = 30 - 1; at < kText; ++at) expect_equal(at);
    EXPECT_EQ(cache.save().size(), other.save().size());
    for (const auto& [key, rows] : other.save())
      EXPECT_TRUE(at::equal(cache.save().at(key), rows)) << name << ", " << key;
  }
}

TEST(TokenStep, EqualsTheFloat64Reference) {
  constexpr int64_t kText = 70;
  for (const auto& [name, spec] : token_specs()) {
    const AttentionInputs in = random_inputs(spec, 2, kText), narrow = in.to(at::kFloat);
    const at::Tensor truth =
        attention(spec, in.q, in.k, in.v, in.tensors, {}, Path::reference).out_bhte;
    const DecodeBias bias = decode_bias(spec, narrow.tensors.bias_table, at::kCPU);
    TokenStep attention = token_step(spec, bias, narrow);
    AttentionCache cache(cache_streams(spec, at::kFloat), 2, kText);
    for (int64_t at = 0; at < kText; ++at)
      ASSERT_LE(relative_error(attend<float>(attention, cache, narrow.tokens(at, 1)),
                               truth.narrow(2, at, 1)),
                1e-5)
          << name << ", token " << at;
  }
}

TEST(TokenStep, HasTheBitsOfCachedAttention) {
  expect_cached_attention<float>(at::kFloat);
  expect_cached_attention<BFloat16>(at::kBFloat16);
}

TEST(TokenStep, SequencesOfUnequalLengthsHaveTheBitsOfEachAlone) {
  for (const auto& [name, spec] : token_specs()) {
    const AttentionInputs in = random_inputs(spec, 1, 30).to(at::kFloat);
    const DecodeBias bias = decode_bias(spec, in.tensors.bias_table, at::kCPU);
    TokenStep attention = token_step(spec, bias, in);
    AttentionCache shorter(cache_streams(spec, at::kFloat), 1, 40), longer = shorter.fork();
    for (int64_t at = 0; at < 20; ++at) {
      attend<float>(attention, longer, in.tokens(at, 1));
      if (at < 3) attend<float>(attention, shorter, in.tokens(at, 1));
    }
    const AttentionCache::Source sources[] = {{&shorter, 0}, {&longer, 0}};
    AttentionCache both = AttentionCache::gather(sources, 40);
    for (int64_t n = 0; n < 5; ++n) {
      const AttentionInputs a = in.tokens(3 + n, 1), b = in.tokens(20 + n, 1);
      AttentionInputs pair = a;
      pair.q = at::cat({a.q, b.q}), pair.k = at::cat({a.k, b.k}), pair.v = at::cat({a.v, b.v});
      for (const auto member : {&AttentionTensors::tau_bt, &AttentionTensors::groups_bsk,
                                &AttentionTensors::members_bs}) {
        if ((a.tensors.*member).defined())
          pair.tensors.*member = at::cat({a.tensors.*member, b.tensors.*member});
      }
      const at::Tensor together = attend<float>(attention, both, pair);
      EXPECT_TRUE(at::equal(together[0], attend<float>(attention, shorter, a)[0])) << name;
      EXPECT_TRUE(at::equal(together[1], attend<float>(attention, longer, b)[0])) << name;
    }
  }
}

// The one reason why a token has no kernel form.
TEST(TokenStep, IsRefusedByName) {
  const auto reason = [](const std::function<void(AttentionSpec&)>& change) {
    AttentionSpec spec = small_spec();
    spec.head_mix.before = Mix::full;
    change(spec);
    return token_form(spec).why;
  };
  EXPECT_EQ(reason([](auto&) {}), "");
  EXPECT_EQ(reason([](auto& s) { s.temperature.kind = TemperatureSpec::Kind::learned; }), "");
  EXPECT_EQ(reason([](auto& s) { s.focus.gate = FocusSpec::Gate::log; }), "");
  EXPECT_EQ(reason([](auto& s) {
              s.focus.gate = FocusSpec::Gate::log;
              s.focus.potentials = FocusSpec::Potentials::chunk;
            }),
            "focus.potentials chunk");
  EXPECT_EQ(reason([](auto& s) { s.focus.gate = FocusSpec::Gate::hard; }), "");
  EXPECT_EQ(reason([](auto& s) {
              s.focus.gate = FocusSpec::Gate::hard;
              s.head_mix = {};
              s.kv_shift.keys = true;
            }),
            "hard Focus of unmixed logits");
  EXPECT_NE(reason([](auto& s) {
              s.multi_token.before = {9, 3};
            }).find("9 x 3"),
            std::string::npos);
  EXPECT_NE(reason([](auto& s) { s.mask = {.window = 4, .sinks = 2}; }), "");
  EXPECT_NE(reason([](auto& s) { s.differential = true; }), "");
}

TEST(TokenStep, EveryFormHasASpec) {
  const auto form = [](const std::function<void(AttentionSpec&)>& change) {
    AttentionSpec spec = small_spec();
    change(spec);
    return token_form(spec).form;
  };
  EXPECT_EQ(form([](auto&) {}), TokenForm::decoder);
  EXPECT_EQ(form([](auto& s) { s.mask.window = 4, s.soft_cap = 2.0, s.sink_logit = true; }),
            TokenForm::decoder);
  EXPECT_EQ(form([](auto& s) { s.longformer = {.window = 3}; }), TokenForm::decoder);
  EXPECT_EQ(form([](auto& s) { s.focus.gate = FocusSpec::Gate::hard; }), TokenForm::decoder);
  EXPECT_EQ(form([](auto& s) { s.focus.gate = FocusSpec::Gate::log; }), TokenForm::kernels);
  EXPECT_EQ(form([](auto& s) { s.streaming = {.recent = 4, .start = 2}; }), TokenForm::kernels);
  EXPECT_EQ(form([](auto& s) { s.sparq = {.components = 4, .keys = 5}; }), TokenForm::operations);
  EXPECT_EQ(form([](auto& s) { s.routing.clusters = 3; }), TokenForm::operations);
}

TEST(ForcedIsaOfTokenStep, EveryInstructionSetOfThisMachinePassesTheTests) {
  expect_tests_pass_on_every_isa("TokenStep.*");
}

}  // namespace
}  // namespace fovea::token_step_test
