// A model folder: config.json, model.safetensors, tokenizer.json in the layout of Hugging Face
// (spec 8.0, 8.2, 8.5).
//
// config.json says what plain Hugging Face can say (model_type "llama", or "qwen3" with norms on
// queries and keys); the whole ModelConfig stands under the key "fovea". Weights are the float32
// masters under the names of the registry.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "fovea/nn/transformer.h"
#include "fovea/text/tokenizer.h"

namespace fovea {

struct LoadedModel {
  ModelConfig config;
  Transformer model;
  std::shared_ptr<const Tokenizer> tokenizer;
};

/// config.json of a resolved config.
nlohmann::ordered_json model_config_json(const ModelConfig& config, const Tokenizer& tokenizer);

/// The ModelConfig of a folder. CheckpointError where config.json is missing, damaged, or without
/// the key "fovea".
ModelConfig load_model_config(const std::filesystem::path& folder);

/// Writes the three files into `folder`, which is created where it is missing; each file is written
/// atomically. For a folder that appears as a whole, call this inside write_folder(). IoError.
void save_model(const std::filesystem::path& folder, const Transformer& model,
                const Tokenizer& tokenizer);

/// CheckpointError naming missing and unexpected tensors and wrong shapes.
LoadedModel load_model(const std::filesystem::path& folder, at::Device device = at::kCPU);

/// Copies the weights of a folder into `model`, whose shapes must agree. Parameters that a
/// mechanism added (origin `added`) may be missing and then keep their start; their names are
/// returned. CheckpointError for all else.
std::vector<std::string> load_weights(const std::filesystem::path& folder, Transformer& model);

}  // namespace fovea
