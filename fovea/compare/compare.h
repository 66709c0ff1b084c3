// compare: variants x seeds under one budget, with the same data in the same order.
//
// Each (variant, seed) is an ordinary run folder below `<run_folder>/runs/` or
// `compare.runs_folder`, named by the variant and a fingerprint of everything that changes its
// numbers (recipe, corpus, seed). So a comparison that was interrupted goes on, a variant that is
// added does not redo the others, and a changed recipe or text never meets old results.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/compare/config.h"
#include "fovea/report/compare_result.h"
#include "fovea/train/recipe.h"
#include "fovea/train/trainer.h"

namespace fovea {

/// Where a comparison stands.
struct CompareProgress {
  std::string label;          ///< "focal-0.4, seed 1 (5 of 12)"
  double fraction = 0;        ///< of all runs, 0 ... 1
  double loss = kNotANumber;  ///< nats per token; NaN, as the speed, where nothing trains
  double tokens_per_second = kNotANumber;
};

/// The place of this process among those that share the runs.
struct RunSharing {
  int64_t rank = 0, ranks = 1;
};

struct CompareCallbacks {
  CorpusProgressCallback data;
  std::function<void(const CompareProgress&)> progress;
  std::function<void(std::string_view)> message, warning;  ///< as TrainCallbacks
  /// Called after every finished run with everything known so far.
  std::function<void(const CompareResult&)> result;
  const std::atomic<bool>* stop = nullptr;
  /// The command of a worker process, which calls run_worker() (workers.h); the parent's process id
  /// is added. Empty: `compare.workers` is 1.
  std::vector<std::string> worker;
  /// Processes that a launcher has started (shared_runs.h): the first one collects the result, and
  /// the others return without it.
  RunSharing sharing;
};

/// One run of a comparison, before it starts.
struct PlannedRun {
  std::string variant;
  int64_t seed = 0;
  Recipe recipe;  ///< resolved, with its own run folder
};

/// The runs in order: all variants of the first seed, then of the next, so that an interrupted
/// comparison compares. `corpus_fingerprint` enters the folder names.
std::vector<PlannedRun> plan_runs(const LoadedRecipe& loaded, const CompareConfig& config,
                                  const std::string& corpus_fingerprint, int64_t tokenizer_vocab);

/// Trains what is missing and returns everything, summarised. A run that fails (NumericalError) is
/// a row with its reason; other errors end the comparison, finished runs stay. Interrupted after
/// the running ones have saved themselves.
CompareResult run_compare(const LoadedRecipe& loaded, const CompareConfig& config,
                          const CompareCallbacks& callbacks = {});

}  // namespace fovea
