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

inline constexpr double kSpeedSeconds = 2.0;  ///< of training, of each variant

/// Tokens a second of each variant in the fastest quarter of a second of kSpeedSeconds, with the
/// threads of `runs` (train.threads). The first of its runs that has finished starts anew for it;
/// the number stands in the rows of all its seeds. Kept in that run's folder, so a comparison that
/// goes on measures new variants alone. Interrupted.
void measure_speeds_alone(std::span<const PlannedRun> runs, std::shared_ptr<const Corpus> corpus,
                          const CompareCallbacks& callbacks, CompareResult& result);

}  // namespace fovea
