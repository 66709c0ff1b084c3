// Longformer: keys and checks.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/longformer.h"

#include <fmt/format.h>

#include "fovea/attention/mechanisms/mechanism.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

constexpr const char* kWhere = "attention spec";

}  // namespace

void LongformerSpec::describe(FieldVisitor& v) {
  v.integer({"window", "w: keys before the token that it sees (times dilation); 0 = off (spec 4.1)",
             ranges::kPositionCounts},
            window);
  v.integers(
      {"dilation", "of every query head, or one number for all; empty: 1", ranges::kPositionCounts},
      dilation);
  v.integer({"globals", "the first positions of a document see all and are seen by all",
             ranges::kPositionCounts},
            globals);
  v.integers({"global_positions", "and so do these positions", ranges::kPositionCounts},
             global_positions);
  v.boolean({"projections", "global queries have projections of their own"}, projections);
}

void LongformerSpec::check() const {
  require<ConfigError>(active() || *this == LongformerSpec{}, kWhere,
                       "longformer needs longformer.window above 0");
}

namespace {

void check(const AttentionSpec& spec) { spec.longformer.check(); }

std::vector<StageUse> uses(const AttentionSpec& spec) {
  const LongformerSpec& l = spec.longformer;
  if (!l.active()) return {};
  return {{.stage = StageId::allowed,
           .setting = fmt::format("longformer {}", l.window),
           .why_not_sdpa = "the pattern of longformer is no mask of torch's"}};
}

}  // namespace

const Mechanism& longformer_mechanism() {
  static constexpr Mechanism mechanism{
      .name = "longformer",
      .describe =
          [](AttentionSpec& spec, FieldVisitor& v) {
            v.nested({"longformer", "stage 6: window, dilation, global tokens (spec 4.1)"},
                     spec.longformer);
          },
      .check = check,
      .uses = uses,
  };
  return mechanism;
}

}  // namespace fovea
