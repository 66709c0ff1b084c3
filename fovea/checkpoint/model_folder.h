// A model folder: config.json, weights, tokenizer.json in the layout of Hugging Face
// (spec 8.0, 8.2, 8.3, 8.5).
//
// A folder of ours has the whole ModelConfig under the key "fovea" of config.json, and beside it
// the keys of Hugging Face's families (families.h). A folder without that key is read as one of the
// families. Weights have the names of the registry.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "fovea/nn/transformer.h"
#include "fovea/nn/weight_fill.h"
#include "fovea/text/tokenizer.h"

namespace fovea {

struct LoadedModel {
  ModelConfig config;
  Transformer model;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::string chat_template;            ///< Jinja text; "" where the files hold none
  std::vector<std::string> drawn = {};  ///< parameters that a ConfigChange brought
};

/// Makes another attention of a config before its model is built; the result is resolved.
using ConfigChange = std::function<ModelConfig(const ModelConfig&)>;

/// How weights are written.
struct SaveOptions {
  /// float32, bfloat16 or float16; nothing = each parameter in the format it was read from
  /// (float32 where it was trained).
  std::optional<at::ScalarType> dtype;
  int64_t shard_bytes = 0;  ///< 0 = one file
  /// Bit for bit as the registry holds them: a family that stores them otherwise (Gemma less 1) is
  /// not written then. For checkpoints, which training goes on from.
  bool exact = false;
  std::string chat_template;  ///< for tokenizer_config.json; "" = none
};

/// config.json of a resolved config; `dtype` is that of most weights.
nlohmann::ordered_json model_config_json(const ModelConfig& config, const Tokenizer& tokenizer,
                                         at::ScalarType dtype = at::kFloat, bool exact = false);

/// The ModelConfig of a folder or a .gguf file. CheckpointError where config.json is missing or
/// damaged; UnsupportedError for a family that the decoder does not have.
ModelConfig load_model_config(const std::filesystem::path& folder);

/// Writes the files into `folder`, which is created where it is missing; each file is written
/// atomically. For a folder that appears as a whole, call this inside write_folder(). IoError.
void save_model(const std::filesystem::path& folder, const Transformer& model,
                const Tokenizer& tokenizer, const SaveOptions& options = {});

/// Loads a model folder, a .gguf or .bin file, or a folder with one .gguf file and no config.json
/// (model_file.h). Reads each number once from the mapped files into the model's memory: matrices
/// as `matrices` says, all else in float32. CheckpointError naming missing and unexpected tensors
/// and wrong shapes; MemoryNeeded. Under `change`, parameters that mechanisms add may be missing,
/// and are drawn.
LoadedModel load_model(const std::filesystem::path& folder, at::Device device = at::kCPU,
                       const MatrixStorage& matrices = {}, const ConfigChange& change = {});

/// The number format of most of a model's weights, as they were stored.
at::ScalarType stored_dtype(const Transformer& model);

/// Copies the weights of a folder or a .gguf file into `model`, whose shapes must agree. Parameters
/// that a mechanism added (origin `added`) may be missing and are then drawn; their names are
/// returned. CheckpointError for all else.
std::vector<std::string> load_weights(const std::filesystem::path& folder, Transformer& model);

}  // namespace fovea
