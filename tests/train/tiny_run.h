// A recipe that trains in a second: two layers of width 16 on a few kilobytes of made text.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "fovea/base/files.h"
#include "fovea/train/recipe.h"

namespace fovea::testing {

/// Writes documents of a simple pattern that a model can learn.
inline void write_text(const std::filesystem::path& folder, int documents = 40,
                       const std::string& word = "focus") {
  std::filesystem::create_directories(folder);
  for (int i = 0; i < documents; ++i) {
    std::string text;
    for (int line = 0; line < 8; ++line) {
      text += word + " " + std::to_string(i) + " looks at " + std::to_string(i + line) + ".\n";
    }
    write_file(folder / (std::to_string(i) + ".txt"), text);
  }
}

inline Recipe tiny_recipe(const std::filesystem::path& root) {
  if (!std::filesystem::exists(root / "text")) write_text(root / "text");
  Recipe recipe;
  recipe.name = "tiny";
  recipe.run_folder = (root / "run").string();
  recipe.model.layers = 2;
  recipe.model.width = 16;
  recipe.model.heads = 2;
  recipe.model.kv_heads = 1;
  recipe.model.ffn_width = 32;
  recipe.model.context = 16;
  recipe.data.sources.resize(1);
  recipe.data.sources[0].path = (root / "text").string();
  recipe.data.sources[0].name = "made";
  recipe.data.cache = (root / "cache").string();
  recipe.train.steps = 12;
  recipe.train.batch_rows = 2;
  recipe.train.optimizer.learning_rate = 1e-2;
  recipe.train.dtype = DtypeChoice::float32;
  recipe.train.device = DeviceChoice::cpu;
  recipe.train.evaluation_tokens = 64;
  recipe.train.log_interval = 1;
  recipe.train.threads = 1;
  return recipe;
}

}  // namespace fovea::testing
