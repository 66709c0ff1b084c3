// The registry of stages that programs add.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/own_stage.h"

#include <map>
#include <mutex>

#include "fovea/attention/call.h"
#include "fovea/attention/mechanisms/mechanism.h"
#include "fovea/base/error.h"
#include "fovea/base/nearest_name.h"

namespace fovea {
namespace {

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
  fail<ConfigError>(kSpecPlace,
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

namespace {

void check_own_stage(const AttentionSpec& s) {
  if (!s.own.active()) {
    require<ConfigError>(s.own.values.empty(), kSpecPlace,
                         "own.values are for own.name; got {} values", s.own.values.size());
    return;
  }
  require<UnsupportedError>(!s.differential, kSpecPlace,
                            "differential with own.name is not defined (which map would it act "
                            "on?); remove one of them");
  const OwnStage& stage = own_stage(s.own.name);
  if (stage.check) stage.check(s);
}

std::vector<StageUse> own_stage_uses(const AttentionSpec& spec) {
  if (!spec.own.active()) return {};
  const std::string why = fmt::format("'{}' is a stage of one's own", spec.own.name);
  return {{.stage = StageId::gate_and_bias,
           .setting = fmt::format("own {}", spec.own.name),
           .why_not_sdpa = why,
           .why_not_kernels = why}};
}

constexpr TensorSlot kOwnStageTensors[] = {
    {.name = "own",
     .member = &AttentionTensors::own,
     .sizes = [](const AttentionSpec& spec, const CallShape&) -> Sizes {
       std::vector<int64_t> sizes = own_weight_shape(spec);
       if (sizes.empty()) return std::nullopt;
       return sizes;
     },
     .setting =
         [](const AttentionSpec& spec) { return fmt::format("own.name '{}'", spec.own.name); }}};

}  // namespace

void OwnStageSpec::describe(FieldVisitor& v) {
  v.text({"name", "a stage that this program registered (docs/adding-a-mechanism.md); '' = none"},
         name);
  v.reals({"values", "numbers that it reads", ranges::kAnySign}, values);
}

const Mechanism& own_stage_mechanism() {
  static constexpr Mechanism mechanism{
      .name = "own",
      .describe =
          [](AttentionSpec& spec, FieldVisitor& v) {
            v.nested({"own", "stage 5: a stage of your own, before gate and bias"}, spec.own);
          },
      .check = check_own_stage,
      .uses = own_stage_uses,
      .tensors = kOwnStageTensors,
      .remove = [](AttentionSpec& spec) { spec.own = {}; },
  };
  return mechanism;
}

}  // namespace fovea
