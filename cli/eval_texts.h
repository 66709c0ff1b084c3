// fovea eval --prompts: the quality of what a model writes.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cli/verbs.h"
#include "fovea/checkpoint/model_folder.h"

namespace fovea::cli {

struct EvalTextOptions {
  std::string prompts, base;
  int64_t max_tokens = 64;
  double temperature = 0.8;
};

void add_eval_text_options(Command& verb, EvalTextOptions& options);

/// Continues the prompts, shows progress, prints the result.
void run_eval_texts(const EvalTextOptions& options, int64_t seed, const Globals& globals,
                    const LoadedModel& loaded);

}  // namespace fovea::cli
