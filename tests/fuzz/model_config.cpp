// Fuzz target: any bytes as the config.json of a Hugging Face folder give a model's configuration
// that can be written again, or an error of Fovea.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/checkpoint/families.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto json = nlohmann::ordered_json::parse(data, data + size, nullptr, false);
  if (json.is_discarded()) return 0;
  try {
    const fovea::ModelConfig config = fovea::config_from_hugging_face(json, "config.json");
    // What was read has a form that is read as the same.
    if (!fovea::not_in_hugging_face(config).empty()) return 0;
    const nlohmann::ordered_json written = fovea::hugging_face_config(config);
    const fovea::ModelConfig again = fovea::config_from_hugging_face(written, "written");
    if (fovea::hugging_face_config(again) != written) __builtin_trap();
  } catch (const fovea::Error&) {
  }
  return 0;
}
