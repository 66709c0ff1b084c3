// How far back a model looks: the receptive field of its layers together, measured (spec 4.1).
//
// A window of w keys reaches w - 1 tokens back in each layer, so the configuration gives a bound
// for all layers. This file measures the reach: it replaces one token of the text and tests whether
// the state of the last position changes.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <vector>

#include "fovea/nn/transformer.h"

namespace fovea {

struct ReachPoint {
  int64_t distance = 0;  ///< tokens before the last position
  double change = 0;     ///< of its last state, as a share of that state's length
};

struct Reach {
  int64_t tokens = 0;              ///< of the text
  int64_t farthest = 0;            ///< largest distance whose change is above kLeastChange
  std::vector<ReachPoint> points;  ///< by rising distance

  nlohmann::ordered_json to_json() const;
};

/// A smaller change is rounding of float32.
inline constexpr double kLeastChange = 1e-6;

/// Replaces single tokens at up to `probes` distances: close together near the end of the text,
/// farther apart before. Then halves the interval around the edge until it is exact, as far as the
/// change falls with the distance. InputError for fewer than two tokens; ConfigError for fewer than
/// two probes.
Reach measure_reach(const Transformer& model, std::span<const int32_t> tokens, int64_t probes = 48);

}  // namespace fovea
