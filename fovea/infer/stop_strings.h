// Stop strings: ends a stream of text before the first of some strings.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fovea {

/// Passes text on as soon as it is certain that no stop string begins in it; holds back what may be
/// the beginning of one.
class StopStrings {
 public:
  /// ConfigError for a stop string that is empty or not UTF-8: it could never be found.
  explicit StopStrings(std::vector<std::string> stops);

  /// The text that may be shown now. After a stop string was found it is always "".
  std::string push(std::string_view text);
  /// The text that was held back, where it ends without a stop string.
  std::string finish();
  /// The stop string that ended the text, "" where there is none yet. The longest of several that
  /// begin at the same place.
  const std::string& found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_, found_;
};

}  // namespace fovea
