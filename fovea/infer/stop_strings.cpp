// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/infer/stop_strings.h"

#include <algorithm>
#include <utility>

#include "fovea/base/error.h"
#include "fovea/text/utf8.h"

namespace fovea {

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    require<ConfigError>(!stop.empty() && valid_utf8_prefix(stop) == stop.size(), "stop strings",
                         "expected each of 'stop' to be text of at least one character in UTF-8; "
                         "got '{}'; remove it",
                         repair_utf8(stop));
  }
  // The longest first, so that it wins at one place.
  std::ranges::stable_sort(stops_, std::ranges::greater(), &std::string::size);
}

std::string StopStrings::push(std::string_view text) {
  if (!found_.empty()) return "";
  held_ += text;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at < first) {
      first = at;
      found_ = stop;
    }
  }
  if (first != std::string::npos) return std::exchange(held_, "").substr(0, first);
  // A suffix that begins a stop string stays.
  size_t kept = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > kept; --n) {
      if (held_.ends_with(std::string_view(stop).substr(0, n))) {
        kept = n;
        break;
      }
    }
  }
  std::string shown = held_.substr(0, held_.size() - kept);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopStrings::finish() { return std::exchange(held_, ""); }

}  // namespace fovea
