// The mean of several models' weights: checkpoints of one run, or of runs from one start
// (Polyak averaging; "model soup").
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <vector>

#include "fovea/checkpoint/model_folder.h"

namespace fovea {

/// Every weight is the mean of the same weight in all `folders` (checkpoints or model folders),
/// summed in float64. CheckpointError where the models differ in their configuration or tokenizer;
/// the message names the folder and the key.
LoadedModel average_models(const std::vector<std::filesystem::path>& folders);

}  // namespace fovea
