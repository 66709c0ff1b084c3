// Parameters of the attention stages of one layer: names, starts, decay.
//
// Starts leave attention what it is: kernels and mixes are identities, norms have gain 1 (3.5).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <cmath>

#include "fovea/attention/mechanisms/multi_token.h"
#include "fovea/attention/mechanisms/own_stage.h"
#include "fovea/nn/transformer_impl.h"

namespace fovea {
namespace {

Init given(const at::Tensor& start) { return {.kind = Init::Kind::given, .start = start}; }

Init kernel_init(const MultiTokenSettings& settings, int64_t heads, const KernelExtent& extent) {
  const bool uniform = settings.init == KernelStart::uniform;
  const double value = settings.init_value > 0.0 ? settings.init_value : uniform ? 1.0 : 0.3;
  if (uniform) return {.kind = Init::Kind::uniform, .value = value};
  return given(start_kernel(settings.init, value, heads, extent));
}

}  // namespace

AttentionTensors Transformer::Impl::add_stages(const AttentionSpec& spec, int64_t layer,
                                               uint64_t seed, std::vector<at::Tensor>& lambdas) {
  const auto add = [&](const char* name, std::vector<int64_t> shape, Init init, bool decay) {
    return registry
        .add({.name = fmt::format("model.layers.{}.self_attn.{}", layer, name),
              .origin = Parameter::Origin::added,
              .decay = decay,
              .init = std::move(init)},
             shape, seed, device)
        .value;
  };
  const bool decay = config.attention.decay_added;
  const MultiTokenSettings& tokens = config.attention.multi_token;
  AttentionTensors x;
  if (spec.sink_logit) x.sink_logit_h = add("sinks", {spec.heads}, {}, false);
  if (const std::vector<int64_t> shape = own_weight_shape(spec); !shape.empty()) {
    const double start = own_stage(spec.own.name).weight_start;
    x.own = add("own.weight", shape, {.kind = Init::Kind::constant, .value = start}, decay);
  }
  const auto kernel = [&](const char* name, const KernelExtent& extent) {
    return extent.active() ? add(name, {spec.heads, extent.queries, extent.keys},
                                 kernel_init(tokens, spec.heads, extent), decay)
                           : at::Tensor();
  };
  x.kernel_before_hqk = kernel("key_query_before.weight", spec.multi_token.before);
  x.kernel_after_hqk = kernel("key_query_after.weight", spec.multi_token.after);
  const auto mix = [&](const char* name, HeadMixSpec::Kind kind) {
    const int64_t m = spec.head_mix.width(kind, spec.heads);
    if (m == 0) return at::Tensor();
    const at::Tensor identity = at::eye(m).expand({spec.heads / m, m, m});
    return add(name, {spec.heads / m, m, m}, given(identity), decay);
  };
  x.mix_before_noi = mix("head_mix_before.weight", spec.head_mix.before);
  x.mix_after_nio = mix("head_mix_after.weight", spec.head_mix.after);
  if (spec.differential) {  // 1.3: lambda starts near lambda_init
    for (const char* name : {"lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"}) {
      lambdas.push_back(
          add(name, {spec.head_dim}, {.kind = Init::Kind::normal, .value = 0.1}, decay));
    }
  }
  const HeadOutputSpec& output = spec.head_output;
  const int64_t e = spec.value_width();
  if (output.norm != HeadOutputSpec::Norm::none)
    x.head_gain_e = add("head_norm.weight", {e}, {.kind = Init::Kind::ones}, decay);
  if (output.gate != HeadOutputSpec::Gate::none) {
    const bool full = output.gate == HeadOutputSpec::Gate::full;
    const double std = 1.0 / std::sqrt(static_cast<double>(config.width));
    x.gate_weight = add("head_gate.weight", full ? std::vector{e, e} : std::vector{e},
                        {.kind = Init::Kind::truncated_normal, .value = std}, decay);
    x.gate_bias = add("head_gate.bias", full ? std::vector{e} : std::vector<int64_t>{}, {}, false);
  }
  return x;
}

}  // namespace fovea
