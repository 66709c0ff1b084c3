// The hash of a document's text, fed in parts of any size: equal texts have equal hashes, however
// they were cut.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "fovea/base/files.h"

namespace fovea {

class ContentHash {
 public:
  void update(std::string_view text) {
    while (!text.empty()) {
      const size_t count = std::min(kBlock - pending_.size(), text.size());
      pending_.append(text.substr(0, count));
      text.remove_prefix(count);
      if (pending_.size() == kBlock) {
        hash_ = fingerprint(pending_, hash_);
        pending_.clear();
      }
    }
  }
  uint64_t finish() const { return fingerprint(pending_, hash_ + 1); }

 private:
  static constexpr size_t kBlock = 64 << 10;
  std::string pending_;
  uint64_t hash_ = 0;
};

}  // namespace fovea
