// Random inputs for attention tests: tensors that fit a spec, packed documents, a library of specs
// that together use every stage.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <string>
#include <vector>

#include "fovea/attention/attention.h"

namespace fovea::testing {

struct AttentionInputs {
  at::Tensor q, k, v;
  AttentionTensors tensors;

  /// Every tensor that has a gradient.
  std::vector<at::Tensor> leaves() const {
    std::vector<at::Tensor> all{q, k, v};
    AttentionTensors copy = tensors;
    for (const auto& [name, x] : copy.named()) {
      if (name == "features") continue;  // state
      if (x->defined() && x->is_floating_point()) all.push_back(*x);
    }
    return all;
  }
  /// The inputs of tokens [begin, begin + n) alone.
  AttentionInputs tokens(int64_t begin, int64_t n) const {
    AttentionInputs some = *this;
    for (at::Tensor* x : {&some.q, &some.k, &some.v}) *x = x->narrow(2, begin, n);
    some.tensors = tensors_of(begin, n);
    return some;
  }
  AttentionTensors tensors_of(int64_t begin, int64_t n) const {
    AttentionTensors some = tensors;
    for (at::Tensor* x : {&some.tau_bt, &some.groups_bsk, &some.members_bs})
      if (x->defined()) *x = x->narrow(1, begin, n);
    for (at::Tensor* x :
         {&some.query_routes_bht, &some.key_routes_bhs, &some.key_nearness_bhs, &some.global_q_bhtd,
          &some.global_k_bgsd, &some.global_v_bgse, &some.start_q_bhtd})
      if (x->defined()) *x = x->narrow(2, begin, n);
    return some;
  }
  AttentionInputs to(at::ScalarType dtype) const {
    const auto cast = [dtype](const at::Tensor& x) {
      return x.defined() && x.is_floating_point()
                 ? x.detach().to(dtype).clone().set_requires_grad(x.requires_grad())
                 : x;
    };
    AttentionInputs copy{cast(q), cast(k), cast(v), tensors};
    for (const auto& [name, x] : copy.tensors.named()) *x = cast(*x);
    return copy;
  }
  AttentionInputs with_gradient() const {
    AttentionInputs copy = to(q.scalar_type());
    for (const at::Tensor& x : copy.leaves()) x.set_requires_grad(true);
    return copy;
  }
};

inline at::Tensor random_normal(at::IntArrayRef sizes, uint64_t seed, double scale = 1.0) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble)) * scale;
}

/// Bit masks [b, s] of `top_k` different groups each.
inline at::Tensor random_member_bits(int64_t b, int64_t s, const FocusSpec& focus, uint64_t seed) {
  const at::Tensor chance = random_normal({b, s, focus.groups}, seed);
  at::Tensor bits = at::zeros({b, s}, at::kLong);
  for (int64_t n = 0; n < b * s; ++n) {
    std::vector<std::pair<double, int64_t>> order;
    for (int64_t k = 0; k < focus.groups; ++k)
      order.emplace_back(chance.const_data_ptr<double>()[n * focus.groups + k], k);
    std::sort(order.begin(), order.end());
    for (int64_t k = 0; k < focus.top_k; ++k)
      bits.data_ptr<int64_t>()[n] |= static_cast<int64_t>(uint64_t{1} << order[k].second);
  }
  return bits;
}

/// float64 inputs for `spec`, t queries and s keys (s = 0: t).
inline AttentionInputs random_inputs(const AttentionSpec& spec, int64_t b, int64_t t,
                                     int64_t s = -1, uint64_t seed = 1) {
  if (s < 0) s = t;
  AttentionInputs in;
  in.q = random_normal({b, spec.heads, t, spec.head_dim}, seed);
  in.k = random_normal({b, spec.kv_heads, s, spec.head_dim}, seed + 1000);
  in.v = random_normal({b, spec.value_heads(), s, spec.value_width()}, seed + 2000);
  if (spec.temperature.kind == TemperatureSpec::Kind::learned) {
    in.tensors.tau_bt = random_normal({b, t}, seed + 3000).abs() + 1.5;
  }
  if (spec.bias.kind == BiasSpec::Kind::t5)
    in.tensors.bias_table = random_normal({spec.bias.buckets, spec.heads}, seed + 4000);
  if (spec.sink_logit) in.tensors.sink_logit_h = random_normal({spec.heads}, seed + 5000);
  if (spec.kv_shift.keys) in.tensors.key_shift_g2 = random_normal({spec.kv_heads, 2}, seed + 19000);
  if (spec.kv_shift.values)
    in.tensors.value_shift_g2 = random_normal({spec.value_heads(), 2}, seed + 20000);
  const auto kernel = [&](const KernelExtent& extent, uint64_t offset) {
    return extent.active()
               ? random_normal({spec.heads, extent.queries, extent.keys}, seed + offset, 0.4)
               : at::Tensor();
  };
  in.tensors.kernel_before_hqk = kernel(spec.multi_token.before, 6000);
  in.tensors.kernel_after_hqk = kernel(spec.multi_token.after, 7000);
  if (spec.multi_token.renormalise)  // sums far from 0
    in.tensors.kernel_after_hqk = in.tensors.kernel_after_hqk.abs() + 0.1;
  const auto mix = [&](HeadMixSpec::Kind kind, uint64_t offset) {
    const int64_t m = spec.head_mix.width(kind, spec.heads);
    return m > 0 ? random_normal({spec.heads / m, m, m}, seed + offset, 0.6) : at::Tensor();
  };
  in.tensors.mix_before_noi = mix(spec.head_mix.before, 8000);
  in.tensors.mix_after_nio = mix(spec.head_mix.after, 9000);
  if (spec.differential)
    in.tensors.lambda_4d = random_normal({4, spec.head_dim}, seed + 13000, 0.3);
  const FocusSpec& focus = spec.focus;
  if (focus.reads_groups())
    in.tensors.groups_bsk =
        at::softmax(random_normal({b, s, focus.groups}, seed + 14000), -1).contiguous();
  if (focus.reads_members()) in.tensors.members_bs = random_member_bits(b, s, focus, seed + 15000);
  if (focus.reads_strength()) in.tensors.focus_strength = at::full({}, 3.5, at::kDouble);
  const RoutingSpec& routing = spec.routing;
  const auto routes = [&](int64_t n, uint64_t offset) {
    return (random_normal({b, spec.heads, n}, seed + offset).abs() * 1e6).to(at::kLong) %
           routing.clusters;
  };
  if (routing.active()) {
    in.tensors.key_routes_bhs = routes(s, 16000);
    in.tensors.query_routes_bht = routes(t, 17000);
  }
  if (routing.reads_nearness())
    in.tensors.key_nearness_bhs = random_normal({b, spec.heads, s}, seed + 18000);
  if (spec.performer.active())
    in.tensors.features_md = random_normal({spec.performer.features, spec.head_dim}, seed + 21000);
  const int64_t e = spec.value_width();
  if (spec.longformer.projections) {
    in.tensors.global_q_bhtd = random_normal({b, spec.heads, t, spec.head_dim}, seed + 21000);
    in.tensors.global_k_bgsd = random_normal({b, spec.kv_heads, s, spec.head_dim}, seed + 22000);
    in.tensors.global_v_bgse = random_normal({b, spec.value_heads(), s, e}, seed + 23000);
  }
  if (spec.streaming.active())
    in.tensors.start_q_bhtd = random_normal({b, spec.heads, t, spec.head_dim}, seed + 24000);
  if (spec.head_output.norm == HeadOutputSpec::Norm::rms)
    in.tensors.head_gain_e = random_normal({e}, seed + 10000);
  if (spec.head_output.gate == HeadOutputSpec::Gate::scalar) {
    in.tensors.gate_weight = random_normal({e}, seed + 11000);
    in.tensors.gate_bias = random_normal({}, seed + 12000);
  } else if (spec.head_output.gate == HeadOutputSpec::Gate::full) {
    in.tensors.gate_weight = random_normal({e, e}, seed + 11000, 0.5);
    in.tensors.gate_bias = random_normal({e}, seed + 12000);
  }
  return in;
}

/// A context with documents of the given lengths, the same in every row of the batch, positions
/// restarting.
inline AttentionContext packed_context(const std::vector<int64_t>& lengths) {
  std::vector<at::Tensor> documents, positions;
  for (size_t n = 0; n < lengths.size(); ++n) {
    documents.push_back(at::full({lengths[n]}, static_cast<int64_t>(n), at::kLong));
    positions.push_back(at::arange(lengths[n], at::kLong));
  }
  AttentionContext context;
  context.query_documents_bt = context.key_documents_bs = at::cat(documents).unsqueeze(0);
  context.query_positions_bt = context.key_positions_bs = at::cat(positions).unsqueeze(0);
  return context;
}

/// Convolutions, head mixing, memberships, clusters, given blocks, calls in parts and sums of
/// features have no pointwise kernel for all of them.
inline bool reference_only(const AttentionSpec& spec) {
  return spec.multi_token.earlier_queries() > 0 || spec.head_mix != HeadMixSpec{} ||
         spec.focus.reads_members() || spec.routing.active() || spec.blocks.active() ||
         spec.longformer.active() || spec.streaming.active() || spec.performer.active();
}

struct NamedSpec {
  std::string name;
  AttentionSpec spec;
};

inline AttentionSpec small_spec(int64_t heads = 4, int64_t kv_heads = 2, int64_t head_dim = 8) {
  AttentionSpec spec;
  spec.heads = heads;
  spec.kv_heads = kv_heads;
  spec.head_dim = head_dim;
  return spec;
}

/// `base` with every gate of Focus, hard groups and biases by distance.
inline std::vector<NamedSpec> focused_specs(const AttentionSpec& base) {
  using Gate = FocusSpec::Gate;
  std::vector<NamedSpec> all;
  const auto add = [&](const std::string& name, const std::function<void(AttentionSpec&)>& change) {
    AttentionSpec spec = base;
    change(spec);
    all.push_back({name, spec});
  };
  for (const Gate gate :
       {Gate::mul, Gate::log, Gate::logsig, Gate::identity, Gate::straight_through, Gate::hard}) {
    add("focus " + std::string(enum_name(gate)), [&](AttentionSpec& s) {
      s.focus = {.gate = gate, .groups = 5, .top_k = 1, .window = 7, .sinks = 2};
    });
  }
  add("focus logsig of a given strength, t5", [](AttentionSpec& s) {
    s.focus = {.gate = Gate::logsig, .groups = 4, .window = 7, .learned_strength = false};
    s.bias = {BiasSpec::Kind::t5, 8, 16};
  });
  add("focus hard of 40 groups in a window, alibi", [](AttentionSpec& s) {
    s.focus = {.gate = Gate::hard, .groups = 40, .top_k = 3, .window = 5, .sinks = 1};
    s.mask.window = 30, s.bias.kind = BiasSpec::Kind::alibi;
  });
  add("t5, both ways", [](AttentionSpec& s) {
    s.bias = {BiasSpec::Kind::t5, 8, 16}, s.mask.causal = false;
  });
  return all;
}

/// One spec per stage setting, and combinations of them. All causal.
inline std::vector<NamedSpec> all_specs() {
  std::vector<NamedSpec> all;
  const auto add = [&all](std::string name, const std::function<void(AttentionSpec&)>& change) {
    AttentionSpec spec = small_spec();
    change(spec);
    all.push_back({std::move(name), spec});
  };
  using Sparsity = MaskRule::Sparsity;
  const auto learned = [](AttentionSpec& s) {
    s.temperature.kind = TemperatureSpec::Kind::learned;
  };
  add("plain", [](AttentionSpec&) {});
  add("mha", [](AttentionSpec& s) { s.kv_heads = s.heads; });
  add("mqa", [](AttentionSpec& s) { s.kv_heads = 1; });
  add("focal_constant", [](AttentionSpec& s) { s.temperature.value = 0.4; });
  add("focal_learned", learned);
  add("scale", [](AttentionSpec& s) { s.scale = 0.7; });
  add("value_dim", [](AttentionSpec& s) { s.value_dim = 5; });
  add("soft_cap", [](AttentionSpec& s) { s.soft_cap = 2.0; });
  add("alibi", [](AttentionSpec& s) { s.bias.kind = BiasSpec::Kind::alibi; });
  add("t5", [](AttentionSpec& s) { s.bias = {BiasSpec::Kind::t5, 8, 16}; });
  add("window", [](AttentionSpec& s) { s.mask.window = 3; });
  add("window_sinks", [](AttentionSpec& s) { s.mask.window = 3, s.mask.sinks = 2; });
  add("strided", [](AttentionSpec& s) {
    s.mask.sparsity = Sparsity::strided, s.mask.window = 2, s.mask.stride = 3;
  });
  add("fixed", [](AttentionSpec& s) {
    s.mask.sparsity = Sparsity::fixed, s.mask.block = 4, s.mask.summary = 1;
  });
  add("sink_logit", [](AttentionSpec& s) { s.sink_logit = true; });
  add("learned_cap_alibi_window", [&](AttentionSpec& s) {
    learned(s);
    s.soft_cap = 3.0, s.bias.kind = BiasSpec::Kind::alibi, s.mask.window = 4;
  });
  add("constant_cap_t5_sinks_logit", [](AttentionSpec& s) {
    s.temperature.value = 0.5, s.soft_cap = 3.0, s.bias = {BiasSpec::Kind::t5, 8, 16};
    s.mask.window = 2, s.mask.sinks = 1, s.sink_logit = true;
  });
  add("learned_t5_strided_logit", [&](AttentionSpec& s) {
    learned(s);
    s.bias = {BiasSpec::Kind::t5, 4, 8}, s.sink_logit = true;
    s.mask.sparsity = Sparsity::strided, s.mask.window = 1, s.mask.stride = 2;
  });
  add("kv_shift", [](AttentionSpec& s) { s.kv_shift = {.keys = true, .values = true}; });
  add("kv_shift_values_learned_window_sinks", [&](AttentionSpec& s) {
    learned(s);
    s.kv_shift.values = true, s.mask.window = 3, s.mask.sinks = 2;
  });
  const auto mix = [](HeadMixSpec::Kind before, HeadMixSpec::Kind after) {
    return HeadMixSpec{before, after, 2};
  };
  using Mix = HeadMixSpec::Kind;
  using Output = HeadOutputSpec;
  const MultiTokenSpec both{.before = {3, 5}, .after = {2, 3}};
  add("mta_before", [](AttentionSpec& s) { s.multi_token.before = {3, 5}; });
  add("mta_after_even", [](AttentionSpec& s) { s.multi_token.after = {2, 4}; });
  add("mta_eq4", [](AttentionSpec& s) {
    s.multi_token = {{3, 4}, {2, 3}, MultiTokenSpec::Equation::eq4, true};
  });
  add("talking_heads", [](AttentionSpec& s) { s.head_mix = {Mix::full, Mix::full, 0}; });
  add("head_groups", [&](AttentionSpec& s) { s.head_mix = mix(Mix::groups, Mix::groups); });
  add("norm_gate", [](AttentionSpec& s) {
    s.head_output = {Output::Norm::rms, 1e-5, Output::DepthScale::lambda, Output::Gate::full};
    s.depth = 2, s.value_dim = 5;
  });
  const auto differential = [](AttentionSpec& s) {
    s.differential = true, s.depth = 1;
    s.head_output = {Output::Norm::rms, 1e-5, Output::DepthScale::lambda, Output::Gate::none};
  };
  add("differential", differential);
  add("differential_t5_window_logit", [&](AttentionSpec& s) {
    differential(s);
    s.value_dim = 5, s.head_output = {}, s.soft_cap = 3.0, s.sink_logit = true;
    s.mask.window = 4, s.bias = {BiasSpec::Kind::t5, 8, 16};
  });
  add("differential_alibi_gate", [&](AttentionSpec& s) {
    differential(s);
    learned(s);
    s.kv_heads = 4, s.bias.kind = BiasSpec::Kind::alibi;
    s.head_output.gate = Output::Gate::scalar;
  });
  using Gate = FocusSpec::Gate;
  const auto focus = [](Gate gate) {
    return FocusSpec{.gate = gate, .groups = 4, .top_k = 1, .window = 2, .sinks = 1};
  };
  for (const Gate gate : {Gate::mul, Gate::log, Gate::logsig, Gate::identity, Gate::hard}) {
    add("focus_" + std::string(enum_name(gate)), [&](AttentionSpec& s) { s.focus = focus(gate); });
  }
  add("focus_mul_cap_t5_window_logit", [&](AttentionSpec& s) {
    s.focus = focus(Gate::mul);
    s.soft_cap = 3.0, s.bias = {BiasSpec::Kind::t5, 8, 16}, s.sink_logit = true;
    s.mask.window = 5, s.mask.sinks = 1;
  });
  add("focus_log_differential", [&](AttentionSpec& s) {
    differential(s);
    s.focus = focus(Gate::log);
    s.bias.kind = BiasSpec::Kind::alibi;
  });
  add("focus_hard_mta_window", [&](AttentionSpec& s) {
    learned(s);
    s.focus = focus(Gate::hard);
    s.multi_token = both, s.head_mix = mix(Mix::full, Mix::groups);
    s.mask.window = 6, s.mask.sinks = 2, s.soft_cap = 3.0;
  });
  add("routing", [](AttentionSpec& s) { s.routing = {.clusters = 3, .keep = 4}; });
  add("routing_nearest_logit", [](AttentionSpec& s) {
    s.routing = {.clusters = 2, .keep = 3, .choice = RoutingSpec::Choice::nearest};
    s.sink_logit = true, s.soft_cap = 3.0;
  });
  add("blocks", [](AttentionSpec& s) {
    s.blocks.size = 5;
    for (int64_t q = 0; q < 20; ++q) {
      if (q == 7) continue;  // sees nothing
      for (const int64_t k : {q, q / 2, q + 1}) s.blocks.pairs.insert(s.blocks.pairs.end(), {q, k});
    }
  });
  add("performer", [](AttentionSpec& s) { s.performer.features = 12; });
  add("performer_learned_shift_gate", [&](AttentionSpec& s) {
    learned(s);
    s.performer.features = 9, s.kv_heads = 1, s.kv_shift.values = true, s.value_dim = 5;
    s.head_output.norm = Output::Norm::rms, s.head_output.gate = Output::Gate::scalar;
  });
  add("longformer", [](AttentionSpec& s) { s.longformer = {.window = 3, .globals = 2}; });
  add("longformer_dilated_logit", [&](AttentionSpec& s) {
    learned(s);
    s.longformer = {.window = 2, .dilation = {1, 3, 2, 2}, .globals = 1};
    s.sink_logit = true, s.soft_cap = 3.0, s.value_dim = 5;
  });
  add("longformer_globals_alibi", [](AttentionSpec& s) {
    s.longformer = {.window = 2, .dilation = {2}, .global_positions = {6, 3}};
    s.bias.kind = BiasSpec::Kind::alibi;
  });
  add("longformer_projections", [](AttentionSpec& s) {
    s.longformer = {.window = 2, .globals = 1, .global_positions = {5}, .projections = true};
  });
  add("longformer_mta", [&](AttentionSpec& s) {
    s.longformer = {.window = 4, .globals = 1};
    s.multi_token = both;
  });
  add("streaming", [](AttentionSpec& s) { s.streaming = {.recent = 4, .start = 2}; });
  add("streaming_learned_t5_logit", [&](AttentionSpec& s) {
    learned(s);
    s.streaming = {.recent = 3, .start = 1};
    s.bias = {BiasSpec::Kind::t5, 8, 16}, s.sink_logit = true, s.soft_cap = 3.0;
  });
  add("streaming_alibi_mix", [&](AttentionSpec& s) {
    s.streaming = {.recent = 3, .start = 2};
    s.head_mix = mix(Mix::full, Mix::groups), s.bias.kind = BiasSpec::Kind::alibi;
  });
  add("streaming_differential", [&](AttentionSpec& s) {
    differential(s);
    s.streaming = {.recent = 3, .start = 2};
  });
  add("mta_everything", [&](AttentionSpec& s) {
    learned(s);
    s.multi_token = both, s.head_mix = mix(Mix::full, Mix::groups);
    s.head_output.norm = Output::Norm::rms, s.head_output.gate = Output::Gate::scalar;
    s.mask.window = 4, s.mask.sinks = 2, s.soft_cap = 3.0, s.sink_logit = true;
    s.bias.kind = BiasSpec::Kind::alibi;
  });
  return all;
}

}  // namespace fovea::testing
