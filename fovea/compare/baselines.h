// Byte n-gram models that stand beside the variants of a comparison.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "fovea/data/batch_stream.h"
#include "fovea/data/corpus.h"
#include "fovea/report/compare_result.h"
#include "fovea/train/recipe.h"

namespace fovea {

/// Scores two models for each name (unigram, bigram, trigram) on `sets`. One is fitted on the bytes
/// that a run of `recipe` (resolved) with `seed` sees, the other on the whole training text. The
/// first is left out where a run sees the whole text, and where its amount is not known in advance
/// (a time budget).
std::vector<CompareBaseline> score_baselines(const std::vector<std::string>& names,
                                             const Recipe& recipe, int64_t seed,
                                             const std::shared_ptr<const Corpus>& corpus,
                                             const std::vector<ValidationSet>& sets);

}  // namespace fovea
