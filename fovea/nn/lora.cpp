// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/lora.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"
#include "fovea/config/reader.h"
#include "fovea/nn/model_config.h"
#include "fovea/nn/ops.h"
#include "fovea/nn/parameters.h"

namespace fovea {
namespace {

constexpr std::string_view kWhere = "model";
constexpr std::string_view kAllLinear = "all-linear";
constexpr std::array<std::string_view, kLoraSites> kSiteNames{
    "q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
// Beyond the sites of the blocks' own dropout, which count 2 a layer.
constexpr uint64_t kDropoutSites = uint64_t{1} << 32;
constexpr int64_t kMostRanks = 1 << 16;

bool names(const std::string& module, const std::string& entry) {
  return module == entry || module.ends_with("." + entry);
}

[[noreturn]] void fail_name(const char* key, const std::string& entry) {
  std::vector<std::string> known(kSiteNames.begin(), kSiteNames.end());
  known.emplace_back(kAllLinear);
  fail<ConfigError>(kWhere,
                    "'model.lora.{}' names linear layers ({}, or a longer end of a name such as "
                    "layers.0.mlp.up_proj); '{}' is none of this model{}",
                    key, fmt::join(known, ", "), entry, did_you_mean(entry, known));
}

bool chosen(const LoraSettings& settings, const LoraPlace& place) {
  return std::ranges::any_of(settings.targets, [&](const std::string& target) {
    return target == kAllLinear ? place.site != LoraSite::qkv_proj : names(place.module, target);
  });
}

void check_names(const LoraSettings& settings, const std::vector<LoraPlace>& possible,
                 const std::vector<LoraPlace>& places) {
  for (const std::string& target : settings.targets) {
    const bool found =
        target == kAllLinear ||
        std::ranges::any_of(possible, [&](const LoraPlace& p) { return names(p.module, target); });
    if (!found) fail_name("targets", target);
  }
  for (const LoraModule& own : settings.modules) {
    const bool found = std::ranges::any_of(
        places, [&](const LoraPlace& p) { return names(p.module, own.module); });
    if (!found) fail_name("modules", own.module);
  }
  for (const LoraPlace& place : places) {
    if (place.site != LoraSite::qkv_proj) continue;
    const bool twice = std::ranges::any_of(places, [&](const LoraPlace& p) {
      return p.layer == place.layer && p.site < LoraSite::qkv_proj;
    });
    require<ConfigError>(!twice, kWhere,
                         "'model.lora.targets' names qkv_proj and one of its parts in layer {}; "
                         "keep one of them",
                         place.layer);
  }
}

}  // namespace

std::span<const std::string_view> enum_names(LoraSite) { return kSiteNames; }
std::span<const std::string_view> enum_names(LoraSettings::Start) {
  static constexpr std::array<std::string_view, 2> starts{"uniform", "gaussian"};
  return starts;
}

void LoraModule::describe(FieldVisitor& v) {
  v.text({"module", "a module's name or the end of it: o_proj, layers.3.mlp.up_proj"}, module);
  v.integer({"rank", "of these modules; 0 = lora.rank", {0, kMostRanks}}, rank);
  v.real({"alpha", "of these modules; 0 = lora.alpha", ranges::kNotNegative}, alpha);
}

void LoraSettings::describe(FieldVisitor& v) {
  v.integer({"rank", "r of the low-rank adapters (spec 5); 0 = none", {0, kMostRanks}}, rank);
  v.real({"alpha", "the adapters' output is times alpha / r", ranges::kPositive}, alpha);
  v.real({"dropout", "on the adapters' input, in training", ranges::kBelowOne}, dropout);
  v.boolean({"rslora", "times alpha / sqrt(r) instead"}, rslora);
  v.choice({"start", "of A: uniform +-1/sqrt(inputs), or gaussian of deviation 1/r; B starts at 0"},
           start);
  v.texts({"targets", "linear layers with an adapter, by name or the end of it; all-linear: all"},
          targets);
  v.nested_list({"modules", "modules of another rank or alpha; the first that fits counts"},
                modules);
}

void LoraSettings::check() const {
  check_fields(kWhere, *this, "model.lora");
  require<ConfigError>(active() || *this == LoraSettings{}, kWhere,
                       "'model.lora' has keys but no adapter; set 'model.lora.rank'");
  require<ConfigError>(!active() || !targets.empty(), kWhere,
                       "'model.lora.targets' must name a linear layer, or all-linear");
}

std::vector<std::string> LoraPlace::weights() const {
  if (site != LoraSite::qkv_proj) return {module + ".weight"};
  const std::string block = module.substr(0, module.size() - enum_name(site).size());
  return {block + "q_proj.weight", block + "k_proj.weight", block + "v_proj.weight"};
}

std::vector<LoraPlace> possible_lora_places(const ModelConfig& c) {
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  std::vector<LoraPlace> all;
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    const auto add = [&](LoraSite site, const char* part, int64_t outputs, int64_t inputs) {
      all.push_back({.site = site,
                     .layer = layer,
                     .module = fmt::format("model.layers.{}.{}.{}", layer, part, enum_name(site)),
                     .inputs = inputs,
                     .outputs = outputs});
    };
    add(LoraSite::q_proj, "self_attn", q, c.width);
    add(LoraSite::k_proj, "self_attn", kv, c.width);
    add(LoraSite::v_proj, "self_attn", kv, c.width);
    add(LoraSite::qkv_proj, "self_attn", q + 2 * kv, c.width);
    add(LoraSite::o_proj, "self_attn", c.width, q);
    if (gated(c.feed_forward)) add(LoraSite::gate_proj, "mlp", c.ffn_width, c.width);
    add(LoraSite::up_proj, "mlp", c.ffn_width, c.width);
    add(LoraSite::down_proj, "mlp", c.width, c.ffn_width);
  }
  return all;
}

std::vector<LoraPlace> lora_places(const LoraSettings& settings, const ModelConfig& config) {
  if (!settings.active()) return {};
  const std::vector<LoraPlace> possible = possible_lora_places(config);
  std::vector<LoraPlace> places;
  for (LoraPlace place : possible) {
    if (!chosen(settings, place)) continue;
    place.rank = settings.rank;
    place.alpha = settings.alpha;
    const auto own = std::ranges::find_if(
        settings.modules, [&](const LoraModule& m) { return names(place.module, m.module); });
    if (own != settings.modules.end()) {
      if (own->rank > 0) place.rank = own->rank;
      if (own->alpha > 0.0) place.alpha = own->alpha;
    }
    const auto r = static_cast<double>(place.rank);
    place.scale = place.alpha / (settings.rslora ? std::sqrt(r) : r);
    places.push_back(std::move(place));
  }
  check_names(settings, possible, places);
  return places;
}

bool is_lora(std::string_view name) {
  return name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight");
}

LayerLora add_lora(ParameterRegistry& registry, const LoraSettings& settings,
                   std::span<const LoraPlace> places, int64_t layer) {
  LayerLora adapters;
  for (const LoraPlace& place : places) {
    if (place.layer != layer) continue;
    const bool gaussian = settings.start == LoraSettings::Start::gaussian;
    const Init start =
        gaussian ? Init{Init::Kind::normal, 1.0 / static_cast<double>(place.rank)}
                 : Init{Init::Kind::uniform, 1.0 / std::sqrt(static_cast<double>(place.inputs))};
    const auto add = [&](const std::string& name, const Init& init, int64_t rows, int64_t columns) {
      return registry
          .add({.name = name,
                .origin = Parameter::Origin::added,
                .mechanism = kLoraMechanism,
                .init = init},
               {rows, columns})
          .value;
    };
    const auto site = static_cast<size_t>(place.site);
    adapters[site] = {
        .a_ri = add(place.a_name(), start, place.rank, place.inputs),
        .b_or = add(place.b_name(), {}, place.outputs, place.rank),
        .scale = place.scale,
        .dropout_site = kDropoutSites + static_cast<uint64_t>(layer) * kLoraSites + site};
  }
  return adapters;
}

at::Tensor lora_product(const LoraAdapter& adapter, const at::Tensor& x, double dropout,
                        uint64_t dropout_seed) {
  const at::Tensor dropped = counter_dropout(x, dropout, dropout_seed, adapter.dropout_site);
  const at::Tensor inner = stacked_linear(dropped, {adapter.a_ri}) * adapter.scale;
  return stacked_linear(inner, {adapter.b_or});
}

at::Tensor lora_delta(const LoraPlace& place, const at::Tensor& a_ri, const at::Tensor& b_or) {
  return at::matmul(b_or.detach().to(at::kDouble), a_ri.detach().to(at::kDouble)) * place.scale;
}

}  // namespace fovea
