// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/data/batch.h"

#include <algorithm>

#include "fovea/base/error.h"
#include "fovea/text/result_json.h"

namespace fovea {

int64_t Batch::targets_counted() const {
  return std::count_if(targets.begin(), targets.end(), [](int32_t target) { return target >= 0; });
}

template <class V>
void describe(V& v, LoaderState& s) {
  v("corpus", s.corpus);
  v("sequence_length", s.sequence_length);
  v("seed", s.seed);
  v("batches", s.batches);
  v("rows", s.rows);
}

nlohmann::ordered_json LoaderState::to_json() const { return described_json(*this); }

LoaderState LoaderState::from_json(const nlohmann::ordered_json& json) {
  LoaderState state;
  read_result<CheckpointError>(json, "loader state", state);
  return state;
}

}  // namespace fovea
