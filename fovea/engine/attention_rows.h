// Where chosen tokens of a text look: sparse rows of attention, with the numbers of `fovea
// inspect`.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "fovea/nn/transformer.h"
#include "fovea/report/inspect_result.h"
#include "fovea/text/tokenizer.h"

namespace fovea {

struct AttentionRowsRequest {
  std::string model = {};             ///< as in EngineRequest
  std::string text = {};              ///< as in EngineRequest
  std::vector<int32_t> tokens = {};   ///< as in EngineRequest
  std::vector<int64_t> queries = {};  ///< places in the text; none = the last token
  std::vector<int64_t> layers = {};   ///< none = all
  std::vector<int64_t> heads = {};    ///< none = all
  int64_t keys = 16;                  ///< the largest weights of each row
  /// From attention_rows() on; DeadlinePassed answers where it is over. 0 = none.
  std::chrono::milliseconds deadline{0};

  static constexpr int64_t kMostQueries = 64, kMostKeys = 1024;
};

/// A key with its weight; weights may be negative (differential heads, convolutions, mixes).
struct KeyWeight {
  int64_t key = 0;
  double weight = 0;
};

/// One row of one head.
struct AttentionRow {
  int64_t layer = 0, head = 0, query = 0;
  std::vector<KeyWeight> keys = {};  ///< largest sizes first, ties by place
  double rest = 0;                   ///< the sum of all other weights
};

/// The keys of one query that hard Focus drops.
struct PrunedKeys {
  int64_t layer = 0, query = 0;
  int64_t visible = 0;             ///< keys that the mask without Focus allows
  std::vector<int64_t> keys = {};  ///< dropped ones
};

struct AttentionRows {
  InspectModel inspected = {};  ///< pieces, layers, groups, kernels, mixes; no maps
  std::vector<int32_t> tokens = {};
  std::vector<AttentionRow> rows = {};
  std::vector<PrunedKeys> pruned = {};

  nlohmann::ordered_json to_json() const;
};

}  // namespace fovea
