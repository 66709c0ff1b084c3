// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/parameters.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "fovea/base/error.h"
#include "fovea/base/files.h"
#include "fovea/base/rng.h"
#include "fovea/nn/matrix.h"

namespace fovea {

Parameter& ParameterRegistry::add(Parameter parameter, at::IntArrayRef shape) {
  require<ConfigError>(find(parameter.name) == nullptr, "parameters",
                       "names are unique; '{}' came twice", parameter.name);
  parameter.value = at::empty(shape, at::TensorOptions(at::kFloat).device(device_));
  if (first_ == FirstNumbers::drawn && !device_.is_meta()) draw(parameter);
  parameter.trainable = parameter.trainable && !parameter.state;
  parameter.value.set_requires_grad(parameter.trainable);
  return parameters_.emplace_back(std::move(parameter));
}

void ParameterRegistry::draw(Parameter& parameter) const {
  const at::NoGradGuard no_grad;
  if (device_.is_cpu()) {
    initialise(parameter.value, parameter.init, seed_, parameter.name);
    return;
  }
  at::Tensor value = at::empty(parameter.value.sizes(), at::kFloat);
  initialise(value, parameter.init, seed_, parameter.name);
  parameter.value.copy_(value);
}

const Parameter* ParameterRegistry::find(std::string_view name) const {
  for (const Parameter& p : parameters_) {
    if (p.name == name) return &p;
  }
  return nullptr;
}

Parameter* ParameterRegistry::find(std::string_view name) {
  return const_cast<Parameter*>(std::as_const(*this).find(name));
}

void ParameterRegistry::train_only(const std::function<bool(const Parameter&)>& chosen) {
  for (Parameter& p : parameters_) {
    p.trainable = !p.state && chosen(p);
    p.value.set_requires_grad(p.trainable);
  }
}

int64_t ParameterRegistry::count(bool only_trainable) const {
  int64_t total = 0;
  for (const Parameter& p : parameters_) {
    if (!p.state && (!only_trainable || p.trainable)) total += matrix_numel(p.value);
  }
  return total;
}

std::vector<std::string> ParameterRegistry::names() const {
  std::vector<std::string> names;
  for (const Parameter& p : parameters_) names.push_back(p.name);
  return names;
}

void initialise(at::Tensor& tensor, const Init& init, uint64_t seed, std::string_view name) {
  const at::NoGradGuard no_grad;
  switch (init.kind) {
    case Init::Kind::zeros:
      tensor.zero_();
      return;
    case Init::Kind::ones:
      tensor.fill_(init.scale);
      return;
    case Init::Kind::constant:
      tensor.fill_(init.value * init.scale);
      return;
    case Init::Kind::given:
      tensor.copy_(init.start);
      return;
    case Init::Kind::uniform: {
      float* data = tensor.mutable_data_ptr<float>();
      Rng rng(mix_seed(seed, fingerprint(name)));
      for (int64_t i = 0; i < tensor.numel(); ++i)
        data[i] = static_cast<float>((2.0 * rng.uniform() - 1.0) * init.value * init.scale);
      return;
    }
    case Init::Kind::normal:
    case Init::Kind::truncated_normal: {
      const double cut = init.kind == Init::Kind::normal ? HUGE_VAL : 3.0;
      float* data = tensor.mutable_data_ptr<float>();
      Rng rng(mix_seed(seed, fingerprint(name)));
      for (int64_t i = 0; i < tensor.numel(); ++i) {
        double z = rng.normal();
        while (std::abs(z) > cut) z = rng.normal();
        data[i] = static_cast<float>(z * init.value * init.scale);
      }
      return;
    }
  }
}

}  // namespace fovea
