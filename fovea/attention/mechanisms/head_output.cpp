// Keys, checks and arithmetic of stage 10.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/head_output.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "fovea/attention/call.h"
#include "fovea/attention/mechanism.h"
#include "fovea/attention/operation.h"
#include "fovea/attention/pipeline.h"
#include "fovea/base/error.h"

namespace fovea {

namespace {

using torch::autograd::variable_list;

// Inputs: the output of the heads, their gain, weight and bias of the gate.
at::Tensor normed_and_gated(const AttentionSpec& spec, const variable_list& x) {
  const HeadOutputSpec& s = spec.head_output;
  const at::Tensor &out = x[0], &gain_e = x[1], &weight = x[2], &bias = x[3];
  const at::ScalarType wide = accumulate_type(out.scalar_type());
  at::Tensor o = out.to(wide);
  if (s.norm == HeadOutputSpec::Norm::rms)
    o = o * at::rsqrt(o.square().mean(-1, true) + s.norm_eps) * gain_e.to(wide);
  if (s.depth_scale != HeadOutputSpec::DepthScale::none) o = o * s.factor(spec.depth);
  if (s.gate == HeadOutputSpec::Gate::scalar) {
    const at::Tensor score = at::matmul(o, weight.to(wide)).unsqueeze(-1);
    o = o * at::sigmoid(score + bias.to(wide));
  } else if (s.gate == HeadOutputSpec::Gate::full) {
    o = o * at::sigmoid(at::linear(o, weight.to(wide), bias.to(wide)));
  }
  return o.to(out.scalar_type());
}

// Keeps the output of the heads alone: what is between, in float32, takes several times its memory,
// and is computed again in the backward pass.
struct HeadOutputCall : Operation {
  AttentionSpec spec;

  Tensors forward(const Tensors& inputs, Tensors& kept) const override {
    kept = inputs;
    return {normed_and_gated(spec, inputs)};
  }
  Tensors backward(const Tensors& kept, const Tensors& grads,
                   const std::vector<bool>& wanted) const override {
    Tensors all(kept.size()), x = kept, leaves;
    if (!grads[0].defined()) return all;
    for (size_t n = 0; n < x.size(); ++n) {
      x[n] = x[n].detach();
      if (wanted[n]) leaves.push_back(x[n].set_requires_grad(true));
    }
    const at::AutoGradMode enable(true);
    const Tensors found = torch::autograd::grad({normed_and_gated(spec, x)}, leaves, grads);
    size_t next = 0;
    for (size_t n = 0; n < x.size(); ++n)
      if (wanted[n]) all[n] = found[next++];
    return all;
  }
};

}  // namespace

at::Tensor head_output(const AttentionSpec& spec, const at::Tensor& out,
                       const AttentionTensors& tensors) {
  if (!spec.head_output.active()) return out;
  const variable_list x{out, tensors.head_gain_e, tensors.gate_weight, tensors.gate_bias};
  const auto learns = [](const at::Tensor& t) { return t.defined() && t.requires_grad(); };
  // float64 is what others are compared with: it may be differentiated twice.
  if (out.scalar_type() == at::kDouble || !at::GradMode::is_enabled() ||
      std::ranges::none_of(x, learns))
    return normed_and_gated(spec, x);
  auto call = c10::make_intrusive<HeadOutputCall>();
  call->spec = spec;
  // Autograd takes no undefined tensors.
  const auto given = [&out](const at::Tensor& t) {
    return t.defined() ? t : at::empty({0}, out.options());
  };
  return run_operation(std::move(call), {x[0], given(x[1]), given(x[2]), given(x[3])})[0];
}

double lambda_init(int64_t depth) {
  return 0.8 - 0.6 * std::exp(-0.3 * static_cast<double>(depth));
}

double HeadOutputSpec::factor(int64_t depth) const {
  switch (depth_scale) {
    case DepthScale::none:
      return 1.0;
    case DepthScale::lambda:
      return 1.0 - lambda_init(depth);
    case DepthScale::inverse_sqrt:
      return 1.0 / std::sqrt(static_cast<double>(depth + 1));
  }
  return 1.0;
}

void HeadOutputSpec::describe(FieldVisitor& v) {
  v.choice({"norm", "RMSNorm of each head's output, one gain for all heads"}, norm);
  v.real({"norm_eps", "epsilon of that norm", {1e-30, 1}}, norm_eps);
  v.choice(
      {"depth_scale", "factor of layer l: lambda 1 - lambda_init(l), inverse_sqrt 1/sqrt(l+1)"},
      depth_scale);
  v.choice({"gate", "sigmoid gate fed with the normed output: scalar per head, or full"}, gate);
}

void HeadOutputSpec::check() const {
  require<ConfigError>(norm_eps > 0.0 && norm_eps < 1.0, kSpecPlace,
                       "head_output.norm_eps must be in (0, 1); got {}", norm_eps);
}

std::span<const std::string_view> enum_names(HeadOutputSpec::Norm) {
  static constexpr std::string_view names[] = {"none", "rms"};
  return names;
}
std::span<const std::string_view> enum_names(HeadOutputSpec::DepthScale) {
  static constexpr std::string_view names[] = {"none", "lambda", "inverse_sqrt"};
  return names;
}
std::span<const std::string_view> enum_names(HeadOutputSpec::Gate) {
  static constexpr std::string_view names[] = {"none", "scalar", "full"};
  return names;
}

namespace {

std::vector<StageUse> head_output_uses(const AttentionSpec& spec) {
  const HeadOutputSpec& o = spec.head_output;
  std::vector<StageUse> all;
  const auto add = [&all](std::string setting) {
    all.push_back({.stage = StageId::values, .setting = std::move(setting)});
  };
  if (o.norm != HeadOutputSpec::Norm::none) add("head norm");
  if (o.depth_scale != HeadOutputSpec::DepthScale::none)
    add(fmt::format("depth scale {} {:.4g}", enum_name(o.depth_scale), o.factor(spec.depth)));
  if (o.gate != HeadOutputSpec::Gate::none) add(fmt::format("head gate {}", enum_name(o.gate)));
  return all;
}

std::string gate_of_head_output(const AttentionSpec& spec) {
  return fmt::format("head_output.gate {}", enum_name(spec.head_output.gate));
}

constexpr TensorSlot kHeadOutputTensors[] = {
    {.name = "head_gain",
     .member = &AttentionTensors::head_gain_e,
     .sizes = [](const AttentionSpec& spec, const CallShape&) -> Sizes {
       if (spec.head_output.norm != HeadOutputSpec::Norm::rms) return std::nullopt;
       return std::vector{spec.value_width()};
     },
     .setting =
         [](const AttentionSpec& spec) {
           return fmt::format("head_output.norm {}", enum_name(spec.head_output.norm));
         }},
    {.name = "gate_weight",
     .member = &AttentionTensors::gate_weight,
     .sizes = [](const AttentionSpec& spec, const CallShape&) -> Sizes {
       if (spec.head_output.gate == HeadOutputSpec::Gate::none) return std::nullopt;
       const bool full = spec.head_output.gate == HeadOutputSpec::Gate::full;
       return std::vector<int64_t>(full ? 2 : 1, spec.value_width());
     },
     .setting = gate_of_head_output},
    {.name = "gate_bias",
     .member = &AttentionTensors::gate_bias,
     .sizes = [](const AttentionSpec& spec, const CallShape&) -> Sizes {
       if (spec.head_output.gate == HeadOutputSpec::Gate::none) return std::nullopt;
       const bool full = spec.head_output.gate == HeadOutputSpec::Gate::full;
       return std::vector<int64_t>(full ? 1 : 0, spec.value_width());
     },
     .setting = gate_of_head_output},
};

constexpr MechanismSetting kHeadOutputSettings[] = {
    {"head norm and gate",
     [](AttentionSpec& s) {
       s.head_output.norm = HeadOutputSpec::Norm::rms;
       s.head_output.gate = HeadOutputSpec::Gate::scalar;
     }},
};

}  // namespace

const Mechanism& head_output_mechanism() {
  static constexpr Mechanism mechanism{
      .name = "head_output",
      .describe =
          [](AttentionSpec& spec, FieldVisitor& v) {
            v.nested({"head_output", "stage 10: norm, depth constant and gate of each head"},
                     spec.head_output);
          },
      .check = [](const AttentionSpec& spec) { spec.head_output.check(); },
      .uses = head_output_uses,
      .tensors = kHeadOutputTensors,
      .token = TokenForm::kernels,
      .settings = kHeadOutputSettings,
      .remove = [](AttentionSpec& spec) { spec.head_output = {}; },
      .without_values =
          [](AttentionCall& call) {
            call.spec.head_output = {};
            for (const TensorSlot& slot : kHeadOutputTensors)
              call.tensors.*slot.member = at::Tensor();
          },
  };
  return mechanism;
}

}  // namespace fovea
