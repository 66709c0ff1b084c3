// fovea eval --stream: a text as one stream through the cache.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cli/verbs.h"
#include "fovea/checkpoint/model_folder.h"
#include "fovea/eval/score_documents.h"

namespace fovea::cli {

struct EvalStreamOptions {
  int64_t part = 0;  ///< 0 = not
};

void add_eval_stream_options(Command& verb, EvalStreamOptions& options);

/// The documents one behind the other, `tokens` of them at most (0 = all); shows progress, prints
/// the table.
void run_eval_stream(const EvalStreamOptions& options, const std::vector<ScoreDocument>& documents,
                     int64_t tokens, const Globals& globals, const LoadedModel& loaded);

}  // namespace fovea::cli
