// MagicPIG: keys and checks.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/magic_pig.h"

#include <fmt/format.h>

#include "fovea/attention/mechanisms/mechanism.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

constexpr const char* kWhere = "attention spec";
constexpr int64_t kMostBits = 30, kMostTables = 4096;

}  // namespace

void MagicPigSpec::describe(FieldVisitor& v) {
  v.integer({"bits", "K: bits of a hash; 0 = off (spec 4.5)", {0, kMostBits}}, bits);
  v.integer({"tables", "L: hashes of a key", {1, kMostTables}}, tables);
  v.integer({"start", "first positions of the document, always read", ranges::kPositionCounts},
            start);
  v.integer({"recent", "last keys of the prompt, always read", ranges::kPositionCounts}, recent);
  v.integer({"seed", "of the random projections", ranges::kSteps}, seed);
}

void MagicPigSpec::check() const {
  require<ConfigError>(bits >= 0 && bits <= kMostBits, kWhere,
                       "magic_pig.bits must be 0 (off) to {}; got {}", kMostBits, bits);
  require<ConfigError>(tables >= 1 && tables <= kMostTables, kWhere,
                       "magic_pig.tables must be 1 to {}; got {}", kMostTables, tables);
}

namespace {

void check(const AttentionSpec& spec) { spec.magic_pig.check(); }

std::vector<StageUse> uses(const AttentionSpec& spec) {
  const MagicPigSpec& m = spec.magic_pig;
  if (!m.active()) return {};
  return {{.stage = StageId::allowed,
           .setting = fmt::format("magic_pig {} x {} bits", m.tables, m.bits),
           .why_not_sdpa = "the query samples its keys"}};
}

}  // namespace

const Mechanism& magic_pig_mechanism() {
  static constexpr Mechanism mechanism{
      .name = "magic_pig",
      .describe =
          [](AttentionSpec& spec, FieldVisitor& v) {
            v.nested({"magic_pig", "stage 6: keys sampled by their hashes (spec 4.5)"},
                     spec.magic_pig);
          },
      .check = check,
      .uses = uses,
  };
  return mechanism;
}

}  // namespace fovea
