// Model families of Hugging Face: converts a config.json to a ModelConfig, and back (spec 8.2, 8.3,
// 8.5).
//
// The families are those whose arithmetic the decoder has; their one list is in families.cpp.
// Tensor names are theirs already, up to the layouts of family_weights.h. A model of ours that no
// family can express is written as model_type "fovea", so that another program refuses it instead
// of computing something else.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "fovea/nn/model_config.h"

namespace fovea {

/// The config of a folder that another program wrote; resolved. `where` names the file in errors.
/// UnsupportedError for a family or setting that the decoder does not have, by name;
/// CheckpointError for missing keys and wrong types.
ModelConfig config_from_hugging_face(const nlohmann::ordered_json& config,
                                     const std::string& where);

/// The keys of Hugging Face for a resolved config, without the ids of special tokens.
nlohmann::ordered_json hugging_face_config(const ModelConfig& config);

/// Dotted keys of `config` that no family can express, in order; empty = any program that reads
/// Hugging Face's layout computes the same. Settings that act in training only do not count.
std::vector<std::string> not_in_hugging_face(const ModelConfig& config);

}  // namespace fovea
