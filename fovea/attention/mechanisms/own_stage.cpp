// The registry of stages that programs add.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/own_stage.h"

#include <map>
#include <mutex>

#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"

namespace fovea {
namespace {

constexpr std::string_view kWhere = "attention spec";

struct Registry {
  std::mutex mutex;
  std::map<std::string, OwnStage> stages;  // stable addresses
};

// The one thing of the library that a program changes for good: what kinds of attention there are.
Registry& registry() {
  static Registry stages;
  return stages;
}

}  // namespace

void register_own_stage(OwnStage stage) {
  require<ConfigError>(!stage.name.empty() && stage.apply != nullptr, "own stage",
                       "a stage needs a name and a function 'apply'; got name '{}'", stage.name);
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const std::string name = stage.name;
  require<ConfigError>(r.stages.emplace(name, std::move(stage)).second, "own stage",
                       "'{}' is registered already; give the other one another name", name);
}

const OwnStage& own_stage(const std::string& name) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const auto found = r.stages.find(name);
  if (found != r.stages.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [other, stage] : r.stages) known.push_back(other);
  fail<ConfigError>(kWhere,
                    "own.name '{}' is no stage of this program{}; it registers {}: run the program "
                    "that brings it (docs/adding-a-mechanism.md)",
                    name, did_you_mean(name, known),
                    known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", ")));
}

std::vector<int64_t> own_weight_shape(const AttentionSpec& spec) {
  if (!spec.own.active()) return {};
  const OwnStage& stage = own_stage(spec.own.name);
  return stage.weight_shape ? stage.weight_shape(spec) : std::vector<int64_t>{};
}

}  // namespace fovea
