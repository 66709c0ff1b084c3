// Adapters in memory: on and off, merged and unmerged.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/adapter.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "fovea/base/error.h"
#include "fovea/nn/lora.h"

namespace fovea {
namespace {

constexpr const char* kWhere = "adapter";

void require_adapter(const ModelConfig& config, bool wanted) {
  require<UnsupportedError>(!wanted || config.lora.active(), kWhere,
                            "this model has no adapter; give a run trained with model.lora, or a "
                            "PEFT folder");
  require<UnsupportedError>(wanted || !config.lora.active(), kWhere,
                            "this model has an adapter already; merge it or take its base");
}

// A model of `config` with every parameter that `from` has; A and B of `adapter` where it is given.
Transformer copy_of(const Transformer& from, const ModelConfig& config, const Adapter* adapter) {
  const at::NoGradGuard no_grad;
  Transformer to(config, 0, from.device(), FirstNumbers::awaited);
  for (Parameter& p : to.parameters().all()) {
    if (adapter != nullptr && is_lora(p.name)) {
      const auto found = adapter->tensors.find(p.name);
      require<CheckpointError>(found != adapter->tensors.end(), kWhere, "tensor '{}' is missing",
                               p.name);
      require<CheckpointError>(found->second.sizes() == p.value.sizes(), kWhere,
                               "'{}' must be [{}]; got [{}]: the adapter is for another base",
                               p.name, fmt::join(p.value.sizes(), ", "),
                               fmt::join(found->second.sizes(), ", "));
      p.value.copy_(found->second);
    } else {
      const Parameter& same = *from.parameters().find(p.name);
      p.value.copy_(same.value);
      p.stored = same.stored;
    }
  }
  return to;
}

// Adds `sign` s B A of every place to the weights of `model`.
void add_products(Transformer& model, const LoraSettings& settings, double sign,
                  const std::function<at::Tensor(const std::string&)>& tensor) {
  const at::NoGradGuard no_grad;
  for (const LoraPlace& place : lora_places(settings, model.config())) {
    const at::Tensor delta = lora_delta(place, tensor(place.a_name()), tensor(place.b_name()));
    int64_t row = 0;
    for (const std::string& name : place.weights()) {
      at::Tensor& w = model.parameters().find(name)->value;
      const int64_t rows = w.size(0);
      w.copy_(w.to(at::kDouble) + sign * delta.narrow(0, row, rows).to(w.device()));
      row += rows;
    }
  }
}

}  // namespace

Adapter adapter_of(const Transformer& model) {
  require_adapter(model.config(), true);
  Adapter adapter{.settings = model.config().lora, .tensors = {}, .base_name = ""};
  for (const Parameter& p : model.parameters().all()) {
    if (is_lora(p.name))
      adapter.tensors.emplace(p.name, p.value.detach().to(at::kCPU, at::kFloat).clone());
  }
  return adapter;
}

Transformer with_adapter(const Transformer& base, const Adapter& adapter) {
  require_adapter(base.config(), false);
  ModelConfig config = base.config();
  config.lora = adapter.settings;
  return copy_of(base, config.resolved(config.vocab_size), &adapter);
}

Transformer without_adapter(const Transformer& model) {
  require_adapter(model.config(), true);
  ModelConfig config = model.config();
  config.lora = {};
  return copy_of(model, config, nullptr);
}

Transformer merge_adapter(const Transformer& model) {
  Transformer merged = without_adapter(model);
  add_products(merged, model.config().lora, 1.0, [&](const std::string& name) {
    return model.parameters().find(name)->value.to(at::kCPU);
  });
  return merged;
}

Transformer unmerge_adapter(const Transformer& merged, const Adapter& adapter) {
  Transformer model = with_adapter(merged, adapter);
  add_products(model, adapter.settings, -1.0,
               [&](const std::string& name) { return adapter.tensors.at(name); });
  return model;
}

}  // namespace fovea
