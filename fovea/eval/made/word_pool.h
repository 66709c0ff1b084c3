// Different English words in random order, as many as are asked for.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fovea/eval/made/draw.h"

namespace fovea {

/// Single words first; adjective-noun pairs where these are used up.
class WordPool {
 public:
  explicit WordPool(Rng rng);
  /// Words begin ... begin + count - 1 of the order.
  std::vector<std::string> get(int64_t begin, int64_t count);

 private:
  Rng rng_;
  DistinctDraws pairs_{DrawKind::words};
  std::vector<std::string> words_;
};

}  // namespace fovea
