// StreamingLLM: keys and checks.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/streaming.h"

#include <fmt/format.h>

#include "fovea/attention/mechanisms/mechanism.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

constexpr const char* kWhere = "attention spec";

}  // namespace

void StreamingSpec::describe(FieldVisitor& v) {
  v.integer({"recent", "most recent keys that stay, self included; 0 = off (spec 4.6)",
             ranges::kPositionCounts},
            recent);
  v.integer({"start", "first positions of the document that stay", ranges::kPositionCounts}, start);
}

void StreamingSpec::check() const {
  require<ConfigError>(recent >= 0 && start >= 0, kWhere,
                       "streaming.recent and streaming.start must not be negative; got {} and {}",
                       recent, start);
}

namespace {

void check(const AttentionSpec& spec) { spec.streaming.check(); }

std::vector<StageUse> uses(const AttentionSpec& spec) {
  const StreamingSpec& s = spec.streaming;
  if (!s.active()) return {};
  return {{.stage = StageId::allowed,
           .setting = fmt::format("streaming {} + {}", s.start, s.recent),
           .why_not_sdpa = "positions inside the cache are two queries for one row"}};
}

}  // namespace

const Mechanism& streaming_mechanism() {
  static constexpr Mechanism mechanism{
      .name = "streaming",
      .describe =
          [](AttentionSpec& spec, FieldVisitor& v) {
            v.nested({"streaming", "stage 6: the first and the most recent tokens (spec 4.6)"},
                     spec.streaming);
          },
      .check = check,
      .uses = uses,
  };
  return mechanism;
}

}  // namespace fovea
