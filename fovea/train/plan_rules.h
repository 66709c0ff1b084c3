// Compares a plan with the rules of thumb of the notes "LLM Architectures and Hyperparameters".
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "fovea/train/run_plan.h"

namespace fovea {

/// One line a rule, in the order of the notes; `plan` has everything but its rules.
std::vector<RuleCheck> check_rules(const Recipe& recipe, const RunPlan& plan);

}  // namespace fovea
