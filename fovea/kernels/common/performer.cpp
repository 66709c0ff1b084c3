// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/common/performer.h"

#include <algorithm>

namespace fovea::kernels {

std::vector<PerformerChunk> performer_chunks(std::span<const int64_t> borders, int64_t tokens) {
  std::vector<PerformerChunk> chunks;
  for (size_t n = 0; n < borders.size(); ++n) {
    const int64_t end = n + 1 < borders.size() ? borders[n + 1] : tokens;
    for (int64_t begin = borders[n]; begin < end; begin += kPerformerChunk)
      chunks.push_back({.begin = begin,
                        .end = std::min(end, begin + kPerformerChunk),
                        .starts = begin == borders[n]});
  }
  return chunks;
}

int64_t PerformerInputs::most_chunks() const {
  size_t most = 0;
  for (const auto& row : chunks) most = std::max(most, row.size());
  return static_cast<int64_t>(most);
}

}  // namespace fovea::kernels
