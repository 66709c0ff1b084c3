// Writes the attentions of a retrofit's table as a file that `fovea eval --systems` reads.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "fovea/nn/model_config.h"

namespace fovea {

/// YAML of the systems to compare: the base, and the base with the adapter. With Focus, each number
/// of groups a token below K / 2 follows (above, it is full attention: U-13). Each stands beside a
/// window with sinks and a strided mask of as many pairs, random groups, and groups by a hash of
/// the token. `config` is the model's with the adapter on it.
std::string retrofit_systems(const std::filesystem::path& adapter, const ModelConfig& config);

}  // namespace fovea
