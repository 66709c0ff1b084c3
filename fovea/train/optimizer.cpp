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
#include <cmath>

#include "fovea/base/error.h"

namespace fovea {
namespace {

// torch.nn.utils.clip_grad_norm_ adds the same to the norm, so that runs compare.
constexpr double kClipEpsilon = 1e-6;

}  // namespace

AdamW::AdamW(ParameterRegistry& parameters, const OptimizerConfig& config, Communicator& ranks,
             int64_t fewest_to_shard, ShardedLayers* layers)
    : config_(config), ranks_(ranks), layers_(layers), parts_{.ranks = ranks.size()} {
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
                         .entries = {}});
      group = groups_.end() - 1;
    }
    Entry entry{.parameter = &parameter, .exp_avg = {}, .exp_avg_sq = {}};
    if (in_layers(entry)) {
      entry.offset = layers_->offset(parameter);
    } else {
      entry.offset = parts_.numbers;
      parts_.numbers += parameter.value.numel();
    }
    group->entries.push_back(std::move(entry));
    if (!step_.defined()) step_ = at::full({}, 0.0, parameter.value.options().requires_grad(false));
  }
  if (groups_.empty()) {
    fail<ConfigError>("optimizer", "the model must have a trainable parameter; all are frozen");
  }
  sharded_ = ranks_.size() > 1 && (layers_ != nullptr || parts_.numbers >= fewest_to_shard);
  for (Group& group : groups_) {
    for (Entry& entry : group.entries) {
      const at::Tensor own = own_value(entry);
      entry.exp_avg = at::zeros_like(own);
      entry.exp_avg_sq = at::zeros_like(own);
    }
  }
}

bool AdamW::in_layers(const Entry& entry) const {
  return layers_ != nullptr && layers_->has(*entry.parameter);
}

const FlatParts& AdamW::cut(const Entry& entry) const {
  return in_layers(entry) ? layers_->parts(*entry.parameter) : parts_;
}

/// This rank's numbers of a tensor of the parameter's shape.
at::Tensor AdamW::own_part(const Entry& entry, const at::Tensor& whole) const {
  return sharded_ ? cut(entry).part(whole, entry.offset, ranks_.rank()) : whole.detach();
}

at::Tensor AdamW::own_value(const Entry& entry) const {
  return in_layers(entry) ? layers_->own_value(*entry.parameter)
                          : own_part(entry, entry.parameter->value);
}

at::Tensor AdamW::own_gradient(const Entry& entry) const {
  if (in_layers(entry)) return layers_->own_gradient(*entry.parameter);
  const at::Tensor& gradient = entry.parameter->value.grad();
  return gradient.defined() ? own_part(entry, gradient.contiguous()) : gradient;
}

/// Each rank sends its part of the values.
void AdamW::send_values() const {
  std::vector<PlacedTensor> values;
  for (const Group& group : groups_)
    for (const Entry& entry : group.entries)
      if (!in_layers(entry)) values.push_back({entry.parameter->value, entry.offset});
  gather_parts(values, parts_, ranks_);
}

std::vector<at::Tensor> AdamW::gradients(bool of_layers) const {
  std::vector<at::Tensor> all;
  for (const Group& group : groups_) {
    for (const Entry& entry : group.entries) {
      if (in_layers(entry) != of_layers) continue;
      const at::Tensor gradient = of_layers ? own_gradient(entry) : entry.parameter->value.grad();
      if (gradient.defined()) all.push_back(gradient);
    }
  }
  return all;
}

at::Tensor AdamW::gradient_norm() const {
  const at::NoGradGuard no_grad;
  const auto norm_of = [&](const std::vector<at::Tensor>& all) {
    return all.empty() ? at::zeros({}, step_.options())
                       : at::linalg_vector_norm(at::stack(at::_foreach_norm(all, 2)), 2);
  };
  const at::Tensor norm = norm_of(gradients(/*of_layers=*/false));
  if (layers_ == nullptr) return norm;
  const auto whole = norm.item<double>(), own = norm_of(gradients(true)).item<double>();
  return at::full({}, std::sqrt(whole * whole + ranks_.sum(own * own)), step_.options());
}

void AdamW::clip_gradients(double norm) {
  const at::NoGradGuard no_grad;
  const double factor = config_.clip / (norm + kClipEpsilon);
  if (config_.clip <= 0.0 || !(factor < 1.0)) return;
  for (const bool of_layers : {false, true})
    if (const std::vector<at::Tensor> all = gradients(of_layers); !all.empty())
      at::_foreach_mul_(all, factor);
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
    for (const Entry& entry : group.entries) {
      at::Tensor gradient = own_gradient(entry);
      if (!gradient.defined() || gradient.numel() == 0) continue;
      values.push_back(sharded_ ? own_value(entry) : entry.parameter->value);
      gradients.push_back(std::move(gradient));
      exp_avg.push_back(entry.exp_avg);
      exp_avg_sq.push_back(entry.exp_avg_sq);
    }
    if (values.empty()) continue;
    const std::vector<at::Tensor> steps(values.size(), step_);
    at::_fused_adamw_(values, gradients, exp_avg, exp_avg_sq, /*max_exp_avg_sqs=*/{}, steps,
                      learning_rate * group.learning_rate_scale, config_.beta1, config_.beta2,
                      config_.weight_decay * group.weight_decay_scale, config_.eps,
                      /*amsgrad=*/false, /*maximize=*/false);
  }
  if (sharded_) send_values();
}

void AdamW::clear_gradients() {
  if (layers_ != nullptr) layers_->clear_gradients();
  for (Group& group : groups_) {
    for (Entry& entry : group.entries) entry.parameter->value.mutable_grad().reset();
  }
}

void AdamW::take_state(AdamW& other) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (size_t i = 0; i < groups_[g].entries.size(); ++i) {
      Entry &entry = groups_[g].entries[i], &before = other.groups_[g].entries[i];
      entry.exp_avg = std::move(before.exp_avg);
      entry.exp_avg_sq = std::move(before.exp_avg_sq);
    }
  }
  steps_ = other.steps_;
}

at::Tensor AdamW::saved_moment(const std::string& name, const Entry& entry, const at::Tensor& own,
                               SavedParts* saved) const {
  if (!sharded_) return own;
  const at::IntArrayRef sizes = entry.parameter->value.sizes();
  return saved != nullptr ? saved->add(name, own, sizes, entry.offset, cut(entry))
                          : whole_tensor(own, sizes, entry.offset, cut(entry), ranks_);
}

TensorMap AdamW::state(SavedParts* saved) const {
  const at::NoGradGuard no_grad;
  TensorMap out;
  for (const Group& group : groups_) {
    for (const Entry& entry : group.entries) {
      const auto add = [&](const char* kind, const at::Tensor& own) {
        const std::string name = kind + entry.parameter->name;
        out.emplace(name, saved_moment(name, entry, own, saved));
      };
      add("exp_avg.", entry.exp_avg);
      add("exp_avg_sq.", entry.exp_avg_sq);
    }
  }
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
    for (Entry& entry : group.entries) {
      const Parameter& parameter = *entry.parameter;
      const auto load = [&](const char* kind, at::Tensor& own) {
        own.copy_(own_part(entry, read(kind + parameter.name, parameter.value)));
      };
      load("exp_avg.", entry.exp_avg);
      load("exp_avg_sq.", entry.exp_avg_sq);
    }
  }
  steps_ = read("step", at::full({}, 0, at::kLong)).item<int64_t>();
}

}  // namespace fovea
