// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/common/performer.h"

#include <algorithm>

namespace fovea::kernels {

void add_performer_chunks(std::span<const int64_t> borders, int64_t tokens,
                          std::vector<PerformerChunk>& chunks) {
  for (size_t n = 0; n < borders.size(); ++n) {
    const int64_t end = n + 1 < borders.size() ? borders[n + 1] : tokens;
    for (int64_t begin = borders[n]; begin < end; begin += kPerformerChunk)
      chunks.push_back({.begin = begin,
                        .end = std::min(end, begin + kPerformerChunk),
                        .starts = begin == borders[n]});
  }
}

int64_t PerformerInputs::most_chunks() const {
  int64_t most = 0;
  for (size_t n = 1; n < chunk_begin.size(); ++n)
    most = std::max(most, chunk_begin[n] - chunk_begin[n - 1]);
  return most;
}

}  // namespace fovea::kernels
