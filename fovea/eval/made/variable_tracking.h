// Variable tracking (RULER "vt"): a chain of assignments is hidden in noise, and all variables that
// hold its value are asked for.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/eval/made/sample.h"
#include "fovea/eval/task_item.h"

namespace fovea {

struct VariableTracking {
  int64_t chains = 1;  ///< the first one is asked for
  int64_t hops = 4;    ///< assignments of a variable to the next
};

inline constexpr int64_t kVariableAnswerTokens = 30;

/// One solved question of 10 sentences of noise stands first; its variables have three letters,
/// these five. Axes: "length". References: the hops + 1 variables of the chain, in order.
/// ConfigError for fewer than one chain or hop.
TaskItem variable_question(const VariableTracking& task, const MadeSample& sample);

}  // namespace fovea
