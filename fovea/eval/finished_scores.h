// Measurements of an interrupted side by side, from which the same command goes on.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "fovea/eval/side_by_side.h"

namespace fovea {

/// A system at a length, with the windows that differences are paired by.
struct FinishedScore {
  SideBySideScore score;
  std::vector<WindowScore> windows;
};

/// A file of finished scores. A score is found by its whole question: the system, the parameters
/// of the model, the length, the text, the options, the version of the code. So a score of another
/// question is never taken.
class FinishedScores {
 public:
  /// Reads the file where it is there and holds a list of scores. With an empty path nothing is
  /// kept.
  explicit FinishedScores(std::filesystem::path file);

  /// The score that was kept under `asked`, or null.
  const FinishedScore* find(const nlohmann::ordered_json& asked) const;
  /// Keeps it, on disk too. IoError where that cannot be written.
  void keep(const nlohmann::ordered_json& asked, const FinishedScore& score);
  /// Removes the file: all is finished.
  void remove();

 private:
  struct Entry {
    nlohmann::ordered_json asked;
    FinishedScore score;
  };
  std::filesystem::path file_;
  std::vector<Entry> entries_;
};

}  // namespace fovea
