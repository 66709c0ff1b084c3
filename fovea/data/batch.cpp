// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/data/batch.h"

#include <algorithm>

#include "fovea/base/error.h"

namespace fovea {

using Json = nlohmann::ordered_json;

int64_t Batch::targets_counted() const {
  return std::count_if(targets.begin(), targets.end(), [](int32_t target) { return target >= 0; });
}

Json LoaderState::to_json() const {
  return {{"corpus", corpus},
          {"sequence_length", sequence_length},
          {"seed", seed},
          {"batches", batches},
          {"rows", rows}};
}

LoaderState LoaderState::from_json(const Json& json) {
  try {
    return {.corpus = json.at("corpus").get<std::string>(),
            .sequence_length = json.at("sequence_length").get<int64_t>(),
            .seed = json.at("seed").get<uint64_t>(),
            .batches = json.at("batches").get<int64_t>(),
            .rows = json.at("rows").get<std::vector<int64_t>>()};
  } catch (const Json::exception& error) {
    fail<CheckpointError>("loader state",
                          "expected corpus, sequence_length, seed, batches and rows; got {}; the "
                          "checkpoint is damaged: resume from an older one",
                          error.what());
  }
}

}  // namespace fovea
