// Retrieval of a value from a JSON object of UUIDs (spec 9.5; the form of lost-in-the-middle).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "fovea/eval/made/sample.h"
#include "fovea/eval/task_item.h"

namespace fovea {

inline constexpr int64_t kKeyValueAnswerTokens = 100;
/// Depths that samples take in turn: 0, 1/5 ... 1.
inline constexpr int64_t kKeyValueDepths = 6;

struct KeyValueTask {
  int64_t pairs = 0;  ///< 0 = as many as fit into the sample's length
  int64_t shots = 2;  ///< solved questions on other keys of the same object
};

/// Random pairs; the one asked is number round(depth * (pairs - 1)). Axes: "length", or "pairs"
/// where their number is given; "depth". ConfigError for fewer pairs than shots + 1.
TaskItem key_value_question(const KeyValueTask& task, const MadeSample& sample);

/// A row of kv_retrieval_*.jsonl.gz.
struct KeyValueRecord {
  std::vector<std::pair<std::string, std::string>> pairs;
  int64_t asked = 0;
};
/// InputError with file:line for a record without "ordered_kv_records", "key" and "value", and for
/// a key that stands in no pair or in two.
std::vector<KeyValueRecord> read_key_values(const std::filesystem::path& path);

/// The same question on a row that was read: its pairs in their order. Axes: "pairs", "depth" (in
/// tenths).
TaskItem key_value_question(const KeyValueRecord& record, int64_t shots, int64_t number,
                            uint64_t seed);

}  // namespace fovea
