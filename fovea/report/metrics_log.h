// `metrics.jsonl`: one JSON object a line, appended while a run lives.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "fovea/base/files.h"

namespace fovea {

/// Every object has `global_step`; the other keys are listed in docs/report.md.
class MetricsLog {
 public:
  /// Appends to `path`, which may not exist yet. A torn last line (the process was killed in the
  /// middle of a write) is removed first. IoError.
  explicit MetricsLog(const std::filesystem::path& path);

  /// Writes one line with one system call, so that a kill tears at most the last line. Numbers that
  /// are not finite become null. InputError where `record` is no object or has no integer
  /// `global_step`.
  void write(const nlohmann::ordered_json& record);
  /// fsync; call it where a checkpoint is written.
  void sync();

 private:
  OutputFile file_;
};

/// All whole lines, in order. A torn last line is left out; any other bad line is an InputError
/// with file:line.
std::vector<nlohmann::ordered_json> read_metrics(const std::filesystem::path& path);

/// Keeps the lines with `global_step` <= `last_step`, byte for byte; atomic. A missing file stays
/// missing.
void truncate_metrics(const std::filesystem::path& path, int64_t last_step);

}  // namespace fovea
