// Loads a model with changes: adapters put on, attention replaced, positions stretched.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "fovea/checkpoint/model_folder.h"

namespace fovea {

/// Additions to a model that is loaded, and changes of its attention and positions.
struct ModelChange {
  std::vector<std::string> adapters;   ///< folders of PEFT, one after the other
  std::vector<std::string> attention;  ///< keys of model.attention: "mask.window=512"
  /// Keys of model.rope: "theta=500000", "scaling.kind=linear", "scaling.factor=4".
  std::vector<std::string> rope = {};

  bool of_config() const { return !attention.empty() || !rope.empty(); }
  bool active() const { return !adapters.empty() || of_config(); }
};

/// The resolved config with these keys of model.attention. ConfigError naming the wrong one.
ModelConfig with_attention_keys(ModelConfig config, const std::vector<std::string>& keys);

/// The resolved config with theta and scaling of these keys of model.rope, the others being those
/// of the weights; a scaling rule without `original_context` gets the model's context. ConfigError
/// naming the wrong key.
ModelConfig with_rope_keys(ModelConfig config, const std::vector<std::string>& keys);

/// load_model() and the change. LoadedModel::drawn names the parameters that no file holds.
/// Adapters are put on the weights as they are, before they are held as `matrices` says: in the
/// blocks of the file, those that no adapter changes. LoRA upon LoRA adds up. As load_model(),
/// read_adapter(), with_adapter().
LoadedModel load_changed(const std::filesystem::path& folder, const ModelChange& change,
                         at::Device device = at::kCPU, const MatrixStorage& matrices = {});

}  // namespace fovea
