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

#include <algorithm>

#include "fovea/base/error.h"

namespace fovea {
namespace {

// torch.nn.utils.clip_grad_norm_ adds the same to the norm, so that runs compare.
constexpr double kClipEpsilon = 1e-6;

}  // namespace

AdamW::AdamW(ParameterRegistry& parameters, const OptimizerConfig& config, Communicator& ranks,
             int64_t fewest_to_shard)
    : config_(config), ranks_(ranks) {
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
                         .offsets = {},
                         .exp_avg = {},
                         .exp_avg_sq = {}});
      group = groups_.end() - 1;
    }
    group->parameters.push_back(&parameter);
    group->offsets.push_back(numbers_);
    numbers_ += parameter.value.numel();
    if (!step_.defined()) {
      step_ = at::full({}, 0.0, parameter.value.options().requires_grad(false));
    }
  }
  if (groups_.empty()) {
    fail<ConfigError>("optimizer", "the model must have a trainable parameter; all are frozen");
  }
  sharded_ = ranks_.size() > 1 && numbers_ >= fewest_to_shard;
  for (Group& group : groups_) {
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      const at::Tensor own = own_part(group.parameters[i]->value, group.offsets[i]);
      group.exp_avg.push_back(at::zeros_like(own));
      group.exp_avg_sq.push_back(at::zeros_like(own));
    }
  }
}

/// The numbers of `whole`, which begin at `offset`, that belong to a rank.
at::Tensor AdamW::part(const at::Tensor& whole, int64_t offset, int64_t rank) const {
  const auto inside = [&](int64_t number) {
    return std::clamp<int64_t>(number - offset, 0, whole.numel());
  };
  const int64_t begin = inside(numbers_ * rank / ranks_.size()),
                end = inside(numbers_ * (rank + 1) / ranks_.size());
  return whole.detach().view(-1).narrow(0, begin, end - begin);
}

at::Tensor AdamW::own_part(const at::Tensor& whole, int64_t offset) const {
  return sharded_ ? part(whole, offset, ranks_.rank()) : whole.detach();
}

/// Each rank sends its parts of the tensors, which begin at these offsets.
void AdamW::send_parts(const std::vector<std::pair<at::Tensor, int64_t>>& tensors) const {
  for (int64_t rank = 0; rank < ranks_.size() && !tensors.empty(); ++rank) {
    std::vector<at::Tensor> parts;
    for (const auto& [tensor, offset] : tensors)
      if (at::Tensor sent = part(tensor, offset, rank); sent.numel() > 0)
        parts.push_back(std::move(sent));
    ranks_.broadcast(parts, rank);
  }
}

void AdamW::add_moments(const char* kind, std::vector<at::Tensor> Group::*moments,
                        TensorMap& out) const {
  std::vector<std::pair<at::Tensor, int64_t>> whole;
  for (const Group& group : groups_) {
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      at::Tensor all = (group.*moments)[i];
      if (sharded_) {
        all = at::zeros_like(group.parameters[i]->value);
        part(all, group.offsets[i], ranks_.rank()).copy_((group.*moments)[i]);
        whole.emplace_back(all, group.offsets[i]);
      }
      out.emplace(kind + group.parameters[i]->name, all);
    }
  }
  send_parts(whole);
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
  std::vector<std::pair<at::Tensor, int64_t>> changed;
  for (Group& group : groups_) {
    std::vector<at::Tensor> values, gradients, exp_avg, exp_avg_sq;
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      at::Tensor& value = group.parameters[i]->value;
      if (!value.grad().defined()) continue;
      changed.emplace_back(value, group.offsets[i]);
      if (group.exp_avg[i].numel() == 0) continue;
      values.push_back(sharded_ ? own_part(value, group.offsets[i]) : value);
      gradients.push_back(own_part(value.grad().contiguous(), group.offsets[i]));
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
  if (sharded_) send_parts(changed);
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
  const at::NoGradGuard no_grad;
  TensorMap out;
  add_moments("exp_avg.", &Group::exp_avg, out);
  add_moments("exp_avg_sq.", &Group::exp_avg_sq, out);
  out.emplace("step", at::full({}, steps_, at::kLong));
  return out;
}

void AdamW::load_state(const SafetensorsFile& file) {
  const at::NoGradGuard no_grad;
  const auto read = [&](const std::string& name, const at::Tensor& target) {
    at::Tensor source = file.tensor(name);
    if (source.sizes() != target.sizes() || source.scalar_type() != target.scalar_type()) {
      fail<CheckpointError>(
          file.path().string(),
          "'{}' must be {} [{}]; got {} [{}]: the checkpoint is of another model, or damaged", name,
          safetensors_dtype(target.scalar_type()), fmt::join(target.sizes().vec(), ", "),
          safetensors_dtype(source.scalar_type()), fmt::join(source.sizes().vec(), ", "));
    }
    return source;
  };
  for (Group& group : groups_) {
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      const Parameter& parameter = *group.parameters[i];
      const auto load = [&](const char* kind, at::Tensor& own) {
        own.copy_(own_part(read(kind + parameter.name, parameter.value), group.offsets[i]));
      };
      load("exp_avg.", group.exp_avg[i]);
      load("exp_avg_sq.", group.exp_avg_sq[i]);
    }
  }
  steps_ = read("step", at::full({}, 0, at::kLong)).item<int64_t>();
}

}  // namespace fovea
