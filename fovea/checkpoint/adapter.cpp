// Adapters in memory: on and off, merged and unmerged.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/adapter.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/config/reader.h"
#include "fovea/nn/lora.h"

namespace fovea {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kAdapter = "adapter";

constexpr int64_t kSampled = 32, kNumbers = 8;  // matrices, and numbers of each
// A 4-bit copy of a model stays above 0.99, merged adapters above 0.8; another model is near 0.
constexpr double kSameBase = 0.5;

void require_lora(const ModelConfig& config) {
  require<UnsupportedError>(config.lora.active(), kAdapter,
                            "this model has no adapter; give a run trained with model.lora, or a "
                            "PEFT folder");
}

bool added(const Parameter& p) { return p.origin == Parameter::Origin::added; }

// The model's config without what was added to `base`; UnsupportedError where nothing was.
ModelConfig config_without(const ModelConfig& config, const ModelConfig* base) {
  ModelConfig rest = config;
  if (base != nullptr) {
    rest.lora = base->lora;
    rest.attention = base->attention;
  } else if (config.lora.active()) {
    rest.lora = {};
  } else {
    rest.attention = base_attention(config.attention);
  }
  require<UnsupportedError>(rest != config, kAdapter,
                            "this model has no adapter and no attention mechanism of its own; give "
                            "a run trained with model.lora or model.attention, or a PEFT folder");
  return rest;
}

// Lays what `theirs` sets over `ours`; `neutral` sets nothing. Lists are one value.
void lay_over(Json& ours, const Json& theirs, const Json& neutral, const std::string& where) {
  for (const auto& [key, value] : theirs.items()) {
    const std::string place = where.empty() ? key : where + "." + key;
    Json& own = ours[key];
    const Json& unset = neutral[key];
    if (value.is_object()) {
      lay_over(own, value, unset, place);
    } else if (value != unset) {
      require<CheckpointError>(own == unset || own == value, kAdapter,
                               "the adapter is for another base: its attention has {} = {}, and "
                               "the adapter brings {}",
                               place, own.dump(), value.dump());
      own = value;
    }
  }
}

// The attention of a model with an adapter: both may bring mechanisms, not the same key.
AttentionSettings joined_attention(const AttentionSettings& base,
                                   const AttentionSettings& adapter) {
  Json all = fields_to_json(base);
  lay_over(all, fields_to_json(adapter), fields_to_json(base_attention(base)), "");
  AttentionSettings joined;
  read_fields(parse_json(all.dump(), kAdapter), joined);
  require<UnsupportedError>(joined != base, kAdapter,
                            "this model has the adapter's attention mechanisms already; give the "
                            "base that it was trained on");
  return joined;
}

void copy_given(Parameter& to, const Adapter& adapter) {
  const auto found = adapter.tensors.find(to.name);
  require<CheckpointError>(found != adapter.tensors.end(), kAdapter, "tensor '{}' is missing",
                           to.name);
  require<CheckpointError>(found->second.sizes() == to.value.sizes(), kAdapter,
                           "'{}' must be [{}]; got [{}]: the adapter is for another base", to.name,
                           fmt::join(to.value.sizes(), ", "),
                           fmt::join(found->second.sizes(), ", "));
  to.value.copy_(found->second);
}

// A model of `config` with every parameter that `from` has, and those that `adapter` brings.
// Others are drawn where `drawn`, which gets their names, is given.
Transformer copy_of(const Transformer& from, const ModelConfig& config, const Adapter* adapter,
                    std::vector<std::string>* drawn = nullptr) {
  const at::NoGradGuard no_grad;
  Transformer to(config, 0, from.device(), FirstNumbers::awaited);
  size_t given = 0;
  for (Parameter& p : to.parameters().all()) {
    if (const Parameter* same = from.parameters().find(p.name)) {
      p.value.copy_(same->value);
      p.stored = same->stored;
    } else if (adapter != nullptr) {
      copy_given(p, *adapter);
      ++given;
    } else if (drawn != nullptr) {
      to.parameters().draw(p);
      drawn->push_back(p.name);
    }
  }
  if (adapter != nullptr && given != adapter->tensors.size()) {
    for (const auto& [name, tensor] : adapter->tensors) {
      const bool known =
          to.parameters().find(name) != nullptr && from.parameters().find(name) == nullptr;
      require<CheckpointError>(known, kAdapter, "tensor '{}' has no place in this model", name);
    }
  }
  return to;
}

void check_base(const Transformer& base, const Adapter& adapter) {
  if (!adapter.base_sample.defined()) return;
  const at::Tensor ours = sample_of_base(base).to(at::kDouble),
                   theirs = adapter.base_sample.to(at::kDouble);
  const bool sizes = ours.sizes() == theirs.sizes();
  const double alike =
      sizes ? ((ours * theirs).sum() / (ours.norm() * theirs.norm() + 1e-30)).item<double>() : 0.0;
  require<CheckpointError>(alike > kSameBase, kAdapter,
                           "the adapter is for another base{}: expected weights like those it was "
                           "trained on, got a similarity of {:.2f}; give that model",
                           adapter.base_name.empty() ? "" : " ('" + adapter.base_name + "')",
                           alike);
}

Transformer without_lora(const Transformer& model) {
  require_lora(model.config());
  ModelConfig config = model.config();
  config.lora = {};
  return copy_of(model, config, nullptr);
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

at::Tensor sample_of_base(const Transformer& model) {
  std::vector<at::Tensor> rows;
  for (const Parameter& p : model.parameters().all()) {
    if (static_cast<int64_t>(rows.size()) == kSampled) break;
    if (added(p) || p.value.dim() != 2 || p.value.numel() < kNumbers) continue;
    const at::Tensor flat = p.value.detach().reshape({-1});
    const int64_t step = flat.numel() / kNumbers;
    at::Tensor row = at::empty({kNumbers}, at::kFloat);
    for (int64_t i = 0; i < kNumbers; ++i) row[i] = flat[i * step].to(at::kCPU, at::kFloat);
    rows.push_back(row / (row.norm() + 1e-12));
  }
  return rows.empty() ? at::zeros({0, kNumbers}) : at::stack(rows);
}

Adapter adapter_of(const Transformer& model, const ModelConfig* base) {
  const ModelConfig &config = model.config(), rest = config_without(config, base);
  Adapter adapter{.settings = rest.lora.active() ? LoraSettings{} : config.lora,
                  .tensors = {},
                  .attention = {},
                  .base_name = "",
                  .base_sample = sample_of_base(model)};
  if (rest.attention != config.attention) adapter.attention = config.attention;
  const Transformer bare(rest, 0, at::kCPU, FirstNumbers::awaited);  // for its names
  for (const Parameter& p : model.parameters().all()) {
    if (bare.parameters().find(p.name) == nullptr)
      adapter.tensors.emplace(p.name, p.value.detach().to(at::kCPU, at::kFloat).clone());
  }
  return adapter;
}

Transformer with_adapter(const Transformer& base, const Adapter& adapter) {
  ModelConfig config = base.config();
  if (adapter.settings.active()) {
    require<UnsupportedError>(!config.lora.active(), kAdapter,
                              "this model has an adapter already; merge it or take its base");
    config.lora = adapter.settings;
  }
  if (adapter.attention) {
    require<CheckpointError>(
        base_attention(*adapter.attention) == base_attention(config.attention), kAdapter,
        "the adapter is for another base: masks, soft-cap or biases of its attention differ");
    config.attention = joined_attention(config.attention, *adapter.attention);
  }
  check_base(base, adapter);
  return copy_of(base, config.resolved(config.vocab_size), &adapter);
}

Transformer with_config(const Transformer& model, const ModelConfig& config,
                        std::vector<std::string>& drawn) {
  return copy_of(model, config, nullptr, &drawn);
}

Transformer without_adapter(const Transformer& model, const ModelConfig* base) {
  return copy_of(model, config_without(model.config(), base), nullptr);
}

Transformer merge_adapter(const Transformer& model) {
  Transformer merged = without_lora(model);
  add_products(merged, model.config().lora, 1.0, [&](const std::string& name) {
    return model.parameters().find(name)->value.to(at::kCPU);
  });
  return merged;
}

Transformer unmerge_adapter(const Transformer& merged, const Adapter& adapter) {
  require<UnsupportedError>(adapter.settings.active() && !adapter.attention, kAdapter,
                            "only LoRA is merged into weights, so only LoRA is taken out; this "
                            "adapter holds attention mechanisms");
  Transformer model = with_adapter(merged, adapter);
  add_products(model, adapter.settings, -1.0,
               [&](const std::string& name) { return adapter.tensors.at(name); });
  return model;
}

}  // namespace fovea
