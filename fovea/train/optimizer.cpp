// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/train/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include "fovea/base/error.h"

namespace fovea {
namespace {

// torch.nn.utils.clip_grad_norm_ adds the same to the norm, so that runs compare.
constexpr double kClipEpsilon = 1e-6;

}  // namespace

AdamW::AdamW(ParameterRegistry& parameters, const OptimizerConfig& config) : config_(config) {
  const at::NoGradGuard no_grad;
  for (Parameter& parameter : parameters.all()) {
    if (!parameter.trainable) continue;
    const double decay = parameter.decay || config.decay_all ? 1.0 : 0.0;
    auto group = std::find_if(groups_.begin(), groups_.end(), [&](const Group& g) {
      return g.weight_decay_scale == decay &&
             g.learning_rate_scale == parameter.learning_rate_scale;
    });
    if (group == groups_.end()) {
      groups_.push_back({.weight_decay_scale = decay,
                         .learning_rate_scale = parameter.learning_rate_scale,
                         .parameters = {},
                         .exp_avg = {},
                         .exp_avg_sq = {}});
      group = groups_.end() - 1;
    }
    group->parameters.push_back(&parameter);
    group->exp_avg.push_back(at::zeros_like(parameter.value));
    group->exp_avg_sq.push_back(at::zeros_like(parameter.value));
    if (!step_.defined()) {
      step_ = at::full({}, 0.0, parameter.value.options().requires_grad(false));
    }
  }
  if (groups_.empty()) {
    fail<ConfigError>("optimizer", "the model must have a trainable parameter; all are frozen");
  }
}

std::vector<at::Tensor> AdamW::gradients() const {
  std::vector<at::Tensor> all;
  for (const Group& group : groups_) {
    for (const Parameter* parameter : group.parameters) {
      if (parameter->value.grad().defined()) all.push_back(parameter->value.grad());
    }
  }
  return all;
}

void AdamW::sum_gradients(Communicator& ranks) { ranks.sum(gradients()); }

at::Tensor AdamW::gradient_norm() const {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> all = gradients();
  if (all.empty()) return at::zeros({}, step_.options());
  return at::linalg_vector_norm(at::stack(at::_foreach_norm(all, 2)), 2);
}

void AdamW::clip_gradients(double norm) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> all = gradients();
  const double factor = config_.clip / (norm + kClipEpsilon);
  if (config_.clip > 0.0 && factor < 1.0 && !all.empty()) at::_foreach_mul_(all, factor);
}

double AdamW::clip_gradients() {
  const double norm = gradient_norm().item<double>();
  clip_gradients(norm);
  return norm;
}

void AdamW::step(double learning_rate) {
  const at::NoGradGuard no_grad;
  ++steps_;
  step_.fill_(static_cast<double>(steps_));
  for (Group& group : groups_) {
    std::vector<at::Tensor> values, gradients, exp_avg, exp_avg_sq;
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      at::Tensor& value = group.parameters[i]->value;
      if (!value.grad().defined()) continue;
      values.push_back(value);
      gradients.push_back(value.grad());
      exp_avg.push_back(group.exp_avg[i]);
      exp_avg_sq.push_back(group.exp_avg_sq[i]);
    }
    if (values.empty()) continue;
    const std::vector<at::Tensor> steps(values.size(), step_);
    at::_fused_adamw_(values, gradients, exp_avg, exp_avg_sq, /*max_exp_avg_sqs=*/{}, steps,
                      learning_rate * group.learning_rate_scale, config_.beta1, config_.beta2,
                      config_.weight_decay * group.weight_decay_scale, config_.eps,
                      /*amsgrad=*/false, /*maximize=*/false);
  }
}

void AdamW::clear_gradients() {
  for (Group& group : groups_) {
    for (Parameter* parameter : group.parameters) parameter->value.mutable_grad().reset();
  }
}

void AdamW::take_state(AdamW& other) {
  for (size_t i = 0; i < groups_.size(); ++i) {
    groups_[i].exp_avg = std::move(other.groups_[i].exp_avg);
    groups_[i].exp_avg_sq = std::move(other.groups_[i].exp_avg_sq);
  }
  steps_ = other.steps_;
}

TensorMap AdamW::state() const {
  TensorMap out;
  for (const Group& group : groups_) {
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      out.emplace("exp_avg." + group.parameters[i]->name, group.exp_avg[i]);
      out.emplace("exp_avg_sq." + group.parameters[i]->name, group.exp_avg_sq[i]);
    }
  }
  out.emplace("step", at::full({}, steps_, at::kLong));
  return out;
}

void AdamW::load_state(const SafetensorsFile& file) {
  const at::NoGradGuard no_grad;
  const auto load = [&](const std::string& name, at::Tensor& target) {
    const at::Tensor source = file.tensor(name);
    if (source.sizes() != target.sizes() || source.scalar_type() != target.scalar_type()) {
      fail<CheckpointError>(
          file.path().string(),
          "'{}' must be {} [{}]; got {} [{}]: the checkpoint is of another model, or damaged", name,
          safetensors_dtype(target.scalar_type()), fmt::join(target.sizes().vec(), ", "),
          safetensors_dtype(source.scalar_type()), fmt::join(source.sizes().vec(), ", "));
    }
    target.copy_(source);
  };
  for (Group& group : groups_) {
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      load("exp_avg." + group.parameters[i]->name, group.exp_avg[i]);
      load("exp_avg_sq." + group.parameters[i]->name, group.exp_avg_sq[i]);
    }
  }
  at::Tensor steps = at::full({}, 0, at::kLong);
  load("step", steps);
  steps_ = steps.item<int64_t>();
}

}  // namespace fovea
