// The log of a task: a header line, then a JSON line for every answered question, in the order in
// which they were answered (docs/evaluation.md).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "fovea/base/files.h"
#include "fovea/eval/task_score.h"

namespace fovea {

/// One line: the score of a question, or why it could not be asked, and what is kept besides.
struct ItemRecord {
  ItemScore score;
  std::string question;  ///< 16 hex digits of the question as the model reads it
  std::string refused;   ///< why; empty where it was asked
  bool context_cut = false;
  nlohmann::ordered_json answer = nlohmann::ordered_json::object();  ///< log-likelihoods or text

  nlohmann::ordered_json to_json() const;
};

/// A log as it was read.
struct ItemLog {
  nlohmann::ordered_json header;
  std::vector<ItemRecord> records;  ///< each question once, by index
};

/// InputError with file:line for a line that does not belong to a log. A last line without its end,
/// as a killed process leaves it, is left out.
ItemLog read_item_log(const std::filesystem::path& path);

/// Appends to a log.
class ItemLogWriter {
 public:
  /// Makes the file with its header, or continues the one that is there, without a broken last
  /// line. InputError where that file has another header.
  ItemLogWriter(const std::filesystem::path& path, const nlohmann::ordered_json& header);

  /// The records that the file held already.
  const std::vector<ItemRecord>& earlier() const { return earlier_; }
  void add(const ItemRecord& record);
  /// Orders the file by question, for readers that compare two logs.
  void finish();

 private:
  std::filesystem::path path_;
  std::vector<ItemRecord> earlier_;
  std::optional<OutputFile> file_;
};

}  // namespace fovea
