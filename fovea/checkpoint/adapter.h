// LoRA adapters apart from their base: taken off, put on, merged into the weights and out of them
// again; folders in the layout of PEFT (spec 5.1, 5.2).
//
// A folder is adapter_config.json and adapter_model.safetensors as the `peft` package writes and
// reads them. Modules have the names of the base's family in `transformers`; GPT-2's `c_attn` is
// the site qkv_proj of ours, in other families qkv_proj is written as its three parts, which is the
// same function.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "fovea/checkpoint/safetensors.h"
#include "fovea/nn/transformer.h"

namespace fovea {

struct Adapter {
  LoraSettings settings;
  TensorMap tensors;      ///< A and B by registry name, float32
  std::string base_name;  ///< what it was trained on; "" = unknown
};

/// A copy of the model's adapter. UnsupportedError for a model without one.
Adapter adapter_of(const Transformer& model);

/// Copies of a model, on its device and with the default compute options. Each throws
/// UnsupportedError where there is an adapter and none may be, or none and one must.
Transformer with_adapter(const Transformer& base, const Adapter& adapter);
Transformer without_adapter(const Transformer& model);
/// W + s B A (rounded once, from float64) and no adapter.
Transformer merge_adapter(const Transformer& model);
/// W - s B A with the adapter on it: what merge_adapter() was given, but for rounding.
Transformer unmerge_adapter(const Transformer& merged, const Adapter& adapter);

/// Reads a PEFT folder for a base of `config`. CheckpointError: missing files, damaged or wrong
/// values, modules or shapes that the base does not have (an adapter for another base).
/// UnsupportedError: another kind of adapter, and options that change the mathematics (DoRA,
/// biases, embeddings, whole modules, starts that changed the base), each by name.
Adapter read_adapter(const std::filesystem::path& folder, const ModelConfig& config);

/// Writes a PEFT folder; `config` is the base's. UnsupportedError for adapters on a part of GPT-2's
/// joined projection, which PEFT cannot name.
void write_adapter(const std::filesystem::path& folder, const ModelConfig& config,
                   const Adapter& adapter);

}  // namespace fovea
