// Layouts of a family's weights where they differ from the registry's (spec 8.1, 8.7).
//
// GPT-2 has other names, transposed matrices, and queries, keys and values in one; Gemma stores
// norms' weights less 1. All others are stored as they are.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <vector>

#include "fovea/checkpoint/safetensors.h"
#include "fovea/checkpoint/weight_source.h"

namespace fovea {

class FamilyWeights {
 public:
  /// `model_type` of config.json; any other than gpt2, gemma2 and diffllama stores weights as they
  /// are.
  explicit FamilyWeights(std::string_view model_type);

  /// Weights are stored bit for bit as the registry holds them.
  bool as_held() const { return !gpt2_ && !gemma_ && !diffllama_; }
  /// The value of the parameter `name`, undefined where the files do not hold it.
  at::Tensor read(const WeightSource& files, const std::string& name) const;
  /// The names under which the files hold `names`.
  std::vector<std::string> stored_names(const WeightSource& files,
                                        const std::vector<std::string>& names) const;
  /// `tensors`, named by the registry, as the family stores them.
  TensorMap to_store(const TensorMap& tensors) const;

 private:
  /// Where a parameter lies: part `part` of `parts` along the outputs, transposed, less `offset`.
  struct Place {
    std::string name;
    int64_t part = 0, parts = 1;
    bool transposed = false;
    double offset = 0.0;
  };
  Place place_of(const std::string& name) const;

  at::Tensor read_diffllama(const WeightSource& files, const std::string& name) const;

  bool gpt2_ = false, gemma_ = false, diffllama_ = false;
};

}  // namespace fovea
