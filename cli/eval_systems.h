// fovea eval --systems: one model under several attentions, side by side.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cli/verbs.h"
#include "fovea/eval/side_by_side.h"

namespace fovea::cli {

struct EvalSystemOptions {
  std::string systems;  ///< the file
  int64_t needles = 0, tokens = 0;
  bool speed = false;
};

void add_eval_system_options(Command& verb, EvalSystemOptions& options);

/// Measures, shows progress, prints the table. With `out`: writes side-by-side.json and .html.
void run_eval_systems(const EvalSystemOptions& options, SideBySideOptions how,
                      const std::vector<std::string>& texts, const std::string& out,
                      const Globals& globals);

}  // namespace fovea::cli
