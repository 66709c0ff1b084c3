// Results of earlier comparisons of the same recipe, made on other machines say: their runs and
// trials are not trained again.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "fovea/compare/compare.h"
#include "fovea/compare/config.h"
#include "fovea/report/compare_result.h"

namespace fovea {

/// The files that `compare.earlier` names, in that order.
std::vector<CompareResult> load_earlier(const CompareConfig& config);

/// InputError where a file is no result of the recipe `base` with its comparison `config`, of which
/// `now` has all but the variants: another budget, text, reference, dtype or tuning.
void check_same_study(const std::vector<CompareResult>& earlier, const CompareResult& now,
                      const Recipe& base, const CompareConfig& config);

/// Takes the runs of `earlier` that `runs` plans: into the variants of `result`, and out of `runs`.
/// InputError where a variant of that name has other settings or another count of parameters.
void take_earlier_runs(const CompareResult& earlier, std::vector<PlannedRun>& runs,
                       int64_t tokenizer_vocab, CompareResult& result);

/// Takes the trials of `earlier` out of `trials` (tuning.h) and adds them to `tried`.
void take_earlier_trials(const CompareResult& earlier, const CompareConfig& config,
                         CompareConfig& trials, std::vector<CompareVariant>& tried);

}  // namespace fovea
