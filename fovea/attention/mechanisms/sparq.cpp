// SparQ: keys and checks.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/sparq.h"

#include <fmt/format.h>

#include "fovea/attention/mechanisms/mechanism.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

constexpr const char* kWhere = "attention spec";

}  // namespace

void SparqSpec::describe(FieldVisitor& v) {
  v.integer(
      {"components", "r: largest components of the query that choose keys; 0 = off (spec 4.4)",
       ranges::kPositionCounts},
      components);
  v.integer({"keys", "k: past keys that are read", ranges::kPositionCounts}, keys);
  v.integer(
      {"recent", "l: the last past keys, always read; -1 = keys / 4", {-1, ranges::kMostPositions}},
      recent);
  v.boolean({"reallocate", "the mean value gets the weight of keys that are not read"}, reallocate);
}

void SparqSpec::check() const {
  require<ConfigError>(!active() || keys >= 1, kWhere, "sparq.keys must be at least 1; got {}",
                       keys);
}

namespace {

void check(const AttentionSpec& spec) { spec.sparq.check(); }

std::vector<StageUse> uses(const AttentionSpec& spec) {
  const SparqSpec& s = spec.sparq;
  if (!s.active()) return {};
  return {{.stage = StageId::allowed,
           .setting = fmt::format("sparq {} by {} components", s.keys, s.components),
           .why_not_sdpa = "the query chooses its keys"}};
}

}  // namespace

const Mechanism& sparq_mechanism() {
  static constexpr Mechanism mechanism{
      .name = "sparq",
      .describe =
          [](AttentionSpec& spec, FieldVisitor& v) {
            v.nested({"sparq", "stage 6: keys chosen by the query's largest components (spec 4.4)"},
                     spec.sparq);
          },
      .check = check,
      .uses = uses,
  };
  return mechanism;
}

}  // namespace fovea
