// Adapters: the parts that a retrofit adds to a frozen model, taken off, put on, written and read
// (spec 5.1, 5.2).
//
// An adapter holds LoRA's A and B, and the parameters and state of the attention mechanisms (Focus,
// temperature, Multi-Token kernels, head mixes). A folder is adapter_config.json and
// adapter_model.safetensors as the `peft` package writes and reads them. The attention's keys stand
// under "fovea" in the first; its tensors stand beside A and B in the second. An adapter without
// LoRA has the peft_type FOVEA.
//
// Modules have the names of the base's family in `transformers`. GPT-2's `c_attn` is our site
// qkv_proj. In other families qkv_proj is written as its three parts, which compute the same
// function.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "fovea/checkpoint/safetensors.h"
#include "fovea/nn/transformer.h"

namespace fovea {

struct Adapter {
  LoraSettings settings;  ///< rank 0 = no LoRA
  TensorMap tensors;      ///< every parameter and state that was added, by registry name, float32
  /// The attention with its mechanisms; nothing where the base's stays as it is.
  std::optional<AttentionSettings> attention;
  std::string base_name;   ///< what it was trained on; "" = unknown
  at::Tensor base_sample;  ///< sample_of_base() of that model; undefined in folders of PEFT
};

/// A few numbers of the matrices of a model without what was added, [n, 8] float32. Another number
/// format changes them a little; another model has other numbers.
at::Tensor sample_of_base(const Transformer& model);

/// A copy of everything that was added to a model of `base`. Without `base`: the model's LoRA, or
/// where it has none its attention mechanisms. UnsupportedError where nothing was added.
Adapter adapter_of(const Transformer& model, const ModelConfig* base = nullptr);

/// Copies of a model, on its device and with the default compute options.
///
/// with_adapter(): attention of the adapter joins that of the model. UnsupportedError where the
/// model has already what the adapter brings; CheckpointError where the adapter is for another
/// base, or both set one key.
Transformer with_adapter(const Transformer& base, const Adapter& adapter);
/// The same weights under another resolved config; parameters that they lack are drawn, and their
/// names go to `drawn`.
Transformer with_config(const Transformer& model, const ModelConfig& config,
                        std::vector<std::string>& drawn);
/// The model without the parts that adapter_of() copies. UnsupportedError where nothing was added.
Transformer without_adapter(const Transformer& model, const ModelConfig* base = nullptr);
/// W + s B A (rounded once, from float64) and no LoRA; attention stays. UnsupportedError for a
/// model without LoRA.
Transformer merge_adapter(const Transformer& model);
/// W - s B A with LoRA on it: the input of merge_adapter(), but for rounding.
Transformer unmerge_adapter(const Transformer& merged, const Adapter& adapter);

/// Reads an adapter folder for a base of `config`. CheckpointError: missing files, damaged or wrong
/// values, modules or shapes that the base does not have (an adapter for another base).
/// UnsupportedError: another kind of adapter, and options that change the mathematics (DoRA,
/// biases, embeddings, whole modules, starts that changed the base), each by name.
Adapter read_adapter(const std::filesystem::path& folder, const ModelConfig& config);

/// Writes an adapter folder; `config` is the base's. UnsupportedError for LoRA on a part of GPT-2's
/// joined projection, which PEFT cannot name.
void write_adapter(const std::filesystem::path& folder, const ModelConfig& config,
                   const Adapter& adapter);

}  // namespace fovea
