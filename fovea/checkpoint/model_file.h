// A model in one file of another program: GGUF (gguf_model.h) or llama2.c (llama2c.h).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "fovea/checkpoint/weight_source.h"
#include "fovea/nn/model_config.h"
#include "fovea/text/tokenizer.h"

namespace fovea {

/// Weights under the registry's names, config, tokenizer and chat template.
class ModelFile : public WeightSource {
 public:
  /// How tensor() gives matrices that are stored in blocks which kernels read: as float32, or as
  /// packed matrices.
  enum class Blocks { unpacked, kept };

  /// Resolved.
  virtual const ModelConfig& config() const = 0;
  virtual std::shared_ptr<const Tokenizer> tokenizer() const = 0;
  /// Jinja text; "" where the file has none.
  virtual std::string chat_template() const = 0;
};

/// The file that a path means: a .gguf or llama2.c's .bin file itself, or the only .gguf file in a
/// folder without config.json. Nothing for other paths.
std::optional<std::filesystem::path> find_model_file(const std::filesystem::path& path);

/// Opens what find_model_file() found. CheckpointError for a damaged file, UnsupportedError for
/// what the decoder does not have, by name.
std::unique_ptr<const ModelFile> open_model_file(
    const std::filesystem::path& path, ModelFile::Blocks blocks = ModelFile::Blocks::unpacked);

/// The tokenizer that a recipe or a user names. It is the one inside a .gguf or .bin file, or
/// inside the only .gguf file of a folder that has no tokenizer file; else open_tokenizer(name).
std::shared_ptr<const Tokenizer> open_named_tokenizer(const std::string& name);

}  // namespace fovea
