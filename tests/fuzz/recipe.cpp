// Fuzz target: any bytes as a recipe give a plan of its run, or an error of Fovea.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/train/recipe.h"
#include "fovea/base/error.h"
#include "fovea/config/node.h"
#include "fovea/train/plan_rules.h"
#include "fovea/train/run_plan.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const fovea::Recipe recipe =
        fovea::recipe_from_node(fovea::parse_yaml(text, "recipe.yaml")).resolved();
    const fovea::RunPlan plan = fovea::plan_run(recipe, 259);
    fovea::check_rules(recipe, plan);
  } catch (const fovea::Error&) {
  }
  return 0;
}
