// Training speeds of a comparison whose runs trained side by side: each variant alone, in turn.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>

#include "fovea/compare/compare.h"
#include "fovea/data/corpus.h"

namespace fovea {

/// Tokens a second of each variant, with all threads, for some seconds of the first of its runs
/// that has finished; they stand in the rows of all its seeds. Kept in that run's folder, so a
/// comparison that goes on measures new variants alone. Interrupted.
void measure_speeds_alone(std::span<const PlannedRun> runs, std::shared_ptr<const Corpus> corpus,
                          const CompareCallbacks& callbacks, CompareResult& result);

}  // namespace fovea
