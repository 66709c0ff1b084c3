// LoRA: low-rank adapters on the linear layers of a decoder (spec 5).
//
//   y = W x + b + s B (A drop(x)),   A [r, in], B [out, r],   s = alpha / r
//   rslora: s = alpha / sqrt(r)
//
// B starts at 0, so the model starts as its base. Hu et al. 2021; rank-stabilised: Kalajdzievski
// 2023. Files and their exchange with the `peft` package are in fovea/checkpoint/adapter.h.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/nn/lora_settings.h"

namespace fovea {

struct ModelConfig;
class ParameterRegistry;

/// The linear layers of a block that can carry an adapter. `qkv_proj` is the three projections as
/// one matrix with one A, as GPT-2 stores them (its `c_attn`).
enum class LoraSite { q_proj, k_proj, v_proj, qkv_proj, o_proj, gate_proj, up_proj, down_proj };
constexpr size_t kLoraSites = 8;
std::span<const std::string_view> enum_names(LoraSite);

/// One adapter: where it sits and how large it is.
struct LoraPlace {
  LoraSite site = LoraSite::q_proj;
  int64_t layer = 0;
  std::string module;  ///< "model.layers.3.self_attn.q_proj"
  int64_t inputs = 0, outputs = 0, rank = 0;
  double alpha = 0.0, scale = 0.0;

  std::string a_name() const { return module + ".lora_A.weight"; }
  std::string b_name() const { return module + ".lora_B.weight"; }
  /// The weight it adds to: one name, three for `qkv_proj`.
  std::vector<std::string> weights() const;
};

/// Every place of a model of `config` (resolved) where an adapter could sit, without rank.
std::vector<LoraPlace> possible_lora_places(const ModelConfig& config);

/// Every place where `settings` puts an adapter into it, layer by layer. ConfigError for targets
/// and modules that name nothing or overlap.
std::vector<LoraPlace> lora_places(const LoraSettings& settings, const ModelConfig& config);

/// Parameter::mechanism of adapters.
inline constexpr std::string_view kLoraMechanism = "lora";

/// Whether a registry name is A or B of an adapter.
bool is_lora(std::string_view parameter_name);

/// Registry values of one adapter; undefined where the module has none.
struct LoraAdapter {
  at::Tensor a_ri, b_or;
  double scale = 0.0;
  uint64_t dropout_site = 0;

  bool defined() const { return a_ri.defined(); }
};
using LayerLora = std::array<LoraAdapter, kLoraSites>;

/// Registers A and B of the places of one layer (origin `added`).
LayerLora add_lora(ParameterRegistry& registry, const LoraSettings& settings,
                   std::span<const LoraPlace> places, int64_t layer);

/// s B (A drop(x)) of x [..., in] in its dtype; `dropout` 0 outside training.
at::Tensor lora_product(const LoraAdapter& adapter, const at::Tensor& x, double dropout,
                        uint64_t dropout_seed);

/// s B A in float64 [out, in], which merging adds to the weight.
at::Tensor lora_delta(const LoraPlace& place, const at::Tensor& a_ri, const at::Tensor& b_or);

}  // namespace fovea
