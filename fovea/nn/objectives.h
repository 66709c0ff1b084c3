// The names of what a step can minimise beside the language-model loss.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

namespace fovea {

/// An objective of a mechanism (11.7): it trains that mechanism's parameters over a frozen base.
struct NamedObjective {
  std::string_view name;       ///< in `train.objective`, for Transformer::objective()
  std::string_view mechanism;  ///< in `train.trainable`
};

/// Those of all mechanisms.
std::vector<NamedObjective> mechanism_objectives();

}  // namespace fovea
