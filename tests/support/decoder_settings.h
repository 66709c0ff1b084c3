// Models for tests of decoding: one for each setting that the fused decoder takes.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "fovea/nn/transformer.h"

namespace fovea::decoder_settings {

inline constexpr int64_t kVocab = 53;
inline constexpr int64_t kTokens = 14;

using Named = std::pair<std::string, ModelConfig>;

inline ModelConfig small() {
  ModelConfig c{.layers = 3, .width = 40, .heads = 4, .kv_heads = 2, .head_dim = 16};
  c.ffn_width = 72;
  c.context = 32;
  return c;
}

inline FocusSpec hard_focus() {
  FocusSpec f{.gate = FocusSpec::Gate::hard, .groups = 4, .top_k = 1, .window = 3};
  f.width = 8;
  return f;
}

template <class E, class Set>
void add_all(std::vector<Named>& all, const char* key, Set set) {
  const auto names = enum_names(E{});
  for (size_t i = 0; i < names.size(); ++i) {
    ModelConfig c = small();
    set(c, static_cast<E>(i));
    all.emplace_back(std::string(key) + " " + std::string(names[i]), c);
  }
}

/// Attention that the decoder leaves to other kernels.
inline std::vector<Named> by_kernels() {
  std::vector<Named> all;
  const auto add = [&](const char* name, auto set) {
    ModelConfig c = small();
    set(c, c.attention.spec);
    all.emplace_back(name, c);
  };
  add("convolutions", [](ModelConfig& c, AttentionSpec& s) {
    s.multi_token.before = {.queries = 3, .keys = 3};
    s.multi_token.after = {.queries = 2, .keys = 3};
    c.attention.multi_token.init = KernelStart::uniform;
  });
  add("convolutions in one layer", [](ModelConfig& c, AttentionSpec& s) {
    s.multi_token.before = {.queries = 3, .keys = 3};
    c.attention.multi_token.init = KernelStart::uniform;
    c.attention.multi_token.layers = {1};
  });
  add("talking heads", [](ModelConfig&, AttentionSpec& s) {
    s.head_mix.before = s.head_mix.after = HeadMixSpec::Kind::full;
  });
  add("convolutions by Eq. 4 in a window, shifted keys and values",
      [](ModelConfig& c, AttentionSpec& s) {
        s.multi_token.before = {.queries = 3, .keys = 4};
        s.multi_token.after = {.queries = 2, .keys = 3};
        s.multi_token.equation = MultiTokenSpec::Equation::eq4;
        s.multi_token.renormalise = true;
        s.kv_shift = {.keys = true, .values = true, .start = 0.4};
        s.mask.window = 5;
        c.attention.multi_token.init = KernelStart::uniform;
      });
  add("head output", [](ModelConfig&, AttentionSpec& s) {
    s.head_output.norm = HeadOutputSpec::Norm::rms;
    s.head_output.gate = HeadOutputSpec::Gate::scalar;
  });
  add("KV shifting", [](ModelConfig&, AttentionSpec& s) {
    s.kv_shift = {.keys = true, .values = true, .start = 0.4};
  });
  using Gate = FocusSpec::Gate;
  for (const Gate gate :
       {Gate::mul, Gate::log, Gate::logsig, Gate::identity, Gate::straight_through, Gate::hard}) {
    const std::string focus = "Focus " + std::string(enum_name(gate));
    add((focus + ", convolutions and mixes").c_str(), [&](ModelConfig& c, AttentionSpec& s) {
      s.focus = hard_focus();
      s.focus.gate = gate;
      s.multi_token = {.before = {3, 3}, .after = {2, 3}};
      s.head_mix.before = s.head_mix.after = HeadMixSpec::Kind::full;
      c.attention.multi_token.init = KernelStart::uniform;
    });
    add((focus + ", head mix, learned temperature, window").c_str(),
        [&](ModelConfig& c, AttentionSpec& s) {
          c.attention.focus.windowed_layers = true;
          s.focus = hard_focus();
          s.focus.gate = gate;
          s.focus.assignment = FocusSpec::Assignment::softmax;
          s.temperature.kind = TemperatureSpec::Kind::learned;
          s.head_mix.before = HeadMixSpec::Kind::full;
          s.mask.window = 5;
        });
    if (gate == Gate::hard) continue;
    add((focus + ", learned temperature").c_str(), [&](ModelConfig&, AttentionSpec& s) {
      s.focus = hard_focus();
      s.focus.gate = gate;
      s.temperature.kind = TemperatureSpec::Kind::learned;
    });
  }
  add("learned temperature by token, convolutions", [](ModelConfig& c, AttentionSpec& s) {
    s.multi_token.before = {.queries = 3, .keys = 3};
    s.temperature = {.kind = TemperatureSpec::Kind::learned, .form = TemperatureSpec::Form::token};
    c.attention.multi_token.init = KernelStart::uniform;
  });
  add("a window with sinks",
      [](ModelConfig&, AttentionSpec& s) { s.mask = {.window = 4, .sinks = 2}; });
  add("Longformer with globals",
      [](ModelConfig&, AttentionSpec& s) { s.longformer = {.window = 3, .globals = 2}; });
  add("StreamingLLM",
      [](ModelConfig&, AttentionSpec& s) { s.streaming = {.recent = 4, .start = 2}; });
  add("StreamingLLM, learned temperature, soft-cap, sink logit, head norms", [](ModelConfig& c,
                                                                                AttentionSpec& s) {
    c.qk_norm = QkNorm::head_rms;
    s.streaming = {.recent = 6, .start = 2};
    s.temperature = {.kind = TemperatureSpec::Kind::learned, .form = TemperatureSpec::Form::token};
    s.soft_cap = 5.0;
    s.sink_logit = true;
  });
  add("StreamingLLM, lengths of queries and keys, head output",
      [](ModelConfig& c, AttentionSpec& s) {
        c.qk_norm = QkNorm::l2;
        s.streaming = {.recent = 7, .start = 1};
        s.head_output.norm = HeadOutputSpec::Norm::rms;
      });
  add("parallel block, convolutions", [](ModelConfig& c, AttentionSpec& s) {
    c.block = BlockLayout::parallel;
    s.multi_token.before = {.queries = 2, .keys = 3};
    c.attention.multi_token.init = KernelStart::uniform;
  });
  return all;
}

/// Attention that no kernel has: the walk computes it between those of the decoder.
inline std::vector<Named> walked() {
  std::vector<Named> all = by_kernels();
  const auto add = [&](const char* name, auto set) {
    ModelConfig c = small();
    set(c, c.attention.spec);
    all.emplace_back(name, c);
  };
  add("differential", [](ModelConfig&, AttentionSpec& s) { s.differential = true; });
  add("potentials by chunk", [](ModelConfig&, AttentionSpec& s) {
    s.focus = hard_focus();
    s.focus.potentials = FocusSpec::Potentials::chunk;
  });
  add("potentials by chunk, head mix", [](ModelConfig&, AttentionSpec& s) {
    s.focus = hard_focus();
    s.focus.potentials = FocusSpec::Potentials::chunk;
    s.head_mix.before = HeadMixSpec::Kind::full;
  });
  add("hard Focus, shifted keys", [](ModelConfig&, AttentionSpec& s) {
    s.focus = hard_focus();
    s.kv_shift = {.keys = true, .start = 0.4};
  });
  add("SparQ", [](ModelConfig&, AttentionSpec& s) { s.sparq = {.components = 4, .keys = 5}; });
  add("one key head for many",
      [](ModelConfig& c, AttentionSpec&) { c.heads = 40, c.kv_heads = 1, c.head_dim = 8; });
  add("adapters", [](ModelConfig& c, AttentionSpec&) {
    c.lora = {.rank = 2, .alpha = 4.0, .targets = {"all-linear"}};
  });
  return all;
}

/// What the fused decoder takes.
inline std::vector<Named> options() {
  std::vector<Named> all = walked();
  const auto add = [&](const char* name, auto set) {
    ModelConfig c = small();
    set(c);
    all.emplace_back(name, c);
  };
  add_all<BlockLayout>(all, "block", [](ModelConfig& c, BlockLayout x) { c.block = x; });
  add_all<BlockLayout>(all, "LayerNorm, biases, block", [](ModelConfig& c, BlockLayout x) {
    c.block = x;
    c.norm = NormKind::layer;
    c.biases = {true, true, true};
  });
  add_all<NormKind>(all, "norm", [](ModelConfig& c, NormKind x) { c.norm = x; });
  add_all<NormKind>(all, "norm with 1/sqrt(l+1)", [](ModelConfig& c, NormKind x) {
    c.norm = x;
    c.norm_depth_scale = HeadOutputSpec::DepthScale::inverse_sqrt;
  });
  add_all<FeedForward>(all, "feed-forward", [](ModelConfig& c, FeedForward x) {
    c.feed_forward = x;
    c.biases.feed_forward = true;
  });
  add_all<QkNorm>(all, "qk norm", [](ModelConfig& c, QkNorm x) {
    c.qk_norm = x;
    c.biases.qkv = true;
    c.rope.rotary_dim = 8;
  });
  add_all<Positions>(all, "positions", [](ModelConfig& c, Positions x) { c.positions = x; });
  add_all<BiasSpec::Kind>(all, "bias", [](ModelConfig& c, BiasSpec::Kind x) {
    c.attention.spec.bias.kind = x;
    if (x != BiasSpec::Kind::none) c.positions = Positions::none;
    c.attention.spec.bias.buckets = 8;
    c.attention.spec.bias.max_distance = 9;
  });
  add_all<TemperatureSpec::Bound>(all, "temperature", [](ModelConfig& c, TemperatureSpec::Bound x) {
    c.attention.spec.temperature.kind = TemperatureSpec::Kind::learned;
    c.attention.spec.temperature.bound = x;
  });
  for (const auto form : {TemperatureSpec::Form::token, TemperatureSpec::Form::global}) {
    add("temperature by token or global", [&](ModelConfig& c) {
      c.attention.spec.temperature = {.kind = TemperatureSpec::Kind::learned, .form = form};
    });
  }
  add("constant temperature, soft-cap, sink", [](ModelConfig& c) {
    c.attention.spec.temperature.value = 0.6;
    c.attention.spec.soft_cap = 3.0;
    c.attention.spec.sink_logit = true;
  });
  add("window, every third layer full without positions", [](ModelConfig& c) {
    c.attention.spec.mask.window = 4;
    c.attention.full = {.every = 3, .layers = {}, .positions = false};
  });
  add("scales, cap, own head", [](ModelConfig& c) {
    c.embedding_scale = 0.0, c.logit_scale = 0.3, c.logit_cap = 2.0, c.tied = false;
  });
  add("one key head", [](ModelConfig& c) { c.kv_heads = 1; });
  const auto add_focus = [&](const char* name, auto set) {
    ModelConfig c = small();
    c.attention.spec.focus = hard_focus();
    set(c, c.attention.spec.focus);
    all.emplace_back(std::string("hard Focus") + name, c);
  };
  add_focus("", [](ModelConfig&, FocusSpec&) {});
  add_focus(", top-2 of 5, sinks",
            [](ModelConfig&, FocusSpec& f) { f.groups = 5, f.top_k = 2, f.sinks = 2; });
  add_focus(", 2k > K", [](ModelConfig&, FocusSpec& f) { f.top_k = 3; });
  add_focus(", softmax, learned temperature, soft-cap, sink", [](ModelConfig& c, FocusSpec& f) {
    f.assignment = FocusSpec::Assignment::softmax;
    c.attention.spec.temperature.kind = TemperatureSpec::Kind::learned;
    c.attention.spec.soft_cap = 3.0;
    c.attention.spec.sink_logit = true;
  });
  add_focus(", one layer without", [](ModelConfig& c, FocusSpec&) {
    c.attention.focus.layers = {0, 2};
  });
  add_focus(" where no window is", [](ModelConfig& c, FocusSpec&) {
    c.attention.spec.mask.window = 4;
    c.attention.full = {.every = 3, .layers = {}, .positions = false};
  });
  return all;
}

/// Parameters away from their starts, so that gains and biases matter.
inline Transformer make(const ModelConfig& c, at::ScalarType dtype) {
  Transformer model(c.resolved(kVocab), 3);
  model.compute().dtype = dtype;
  const at::NoGradGuard no_grad;
  int64_t salt = 1;
  for (Parameter& p : model.parameters().all()) {
    const int64_t n = p.value.numel();
    p.value.add_(at::sin(at::arange(n) + ++salt).view(p.value.sizes()), p.decay ? 0.02 : 0.2);
  }
  return model;
}

inline at::Tensor tokens(int64_t b) {
  return at::randint(0, kVocab, {b, kTokens}, at::detail::createCPUGenerator(5),
                     at::TensorOptions(at::kLong));
}

/// Logits [b, t, v] of tokens decoded one at a time.
inline at::Tensor decoded(const Transformer& model, const at::Tensor& ids, PathName path) {
  DecodeState state = model.make_decode_state(ids.size(0), ids.size(1));
  std::vector<at::Tensor> all;
  for (int64_t i = 0; i < ids.size(1); ++i) {
    all.push_back(model.decode(ids.narrow(1, i, 1), state, true));
    EXPECT_EQ(state.path.name, path) << state.path.reason.text();
  }
  return at::cat(all, 1).to(at::kDouble);
}

inline double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

}  // namespace fovea::decoder_settings
