// The registry of attention that programs add, and its formulas as those of a mechanism.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/own_stage.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "fovea/attention/call.h"
#include "fovea/attention/mechanism.h"
#include "fovea/attention/stage_rows.h"
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

const OwnStage* find_own_stage(const std::string& name) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const auto found = r.stages.find(name);
  return found != r.stages.end() ? &found->second : nullptr;
}

// One formula a stage, none where rows of a call do not exist yet.
void check_formulas(const OwnStage& stage) {
  require<ConfigError>(stage.apply || stage.visible || !stage.formulas.empty(), "own stage",
                       "a stage needs a function: 'apply', 'visible' or one of 'formulas'; got "
                       "none for '{}'",
                       stage.name);
  std::vector<StageId> taken;
  if (stage.apply) taken.push_back(StageId::gate_and_bias);
  for (const auto& [id, formula] : stage.formulas) {
    require<ConfigError>(
        formula != nullptr && id != StageId::keys && std::ranges::find(taken, id) == taken.end(),
        "own stage",
        "'formulas' of '{}' must be one function for a stage, and none for keys; "
        "got another one for {}",
        stage.name, stage_of(id).name);
    taken.push_back(id);
  }
}

}  // namespace

void register_own_stage(OwnStage stage) {
  require<ConfigError>(!stage.name.empty(), "own stage", "a stage needs a name; got ''");
  check_formulas(stage);
  if (stage.apply) stage.formulas.emplace_back(StageId::gate_and_bias, std::move(stage.apply));
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const std::string name = stage.name;
  require<ConfigError>(r.stages.emplace(name, std::move(stage)).second, "own stage",
                       "'{}' is registered already; give the other one another name", name);
}

const OwnStage& own_stage(const std::string& name) {
  if (const OwnStage* found = find_own_stage(name)) return *found;
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
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
  const OwnStage& stage = own_stage(s.own.name);
  if (stage.check) stage.check(s);
}

std::vector<StageUse> own_stage_uses(const AttentionSpec& spec) {
  if (!spec.own.active()) return {};
  const std::string why = fmt::format("'{}' is a stage of one's own", spec.own.name);
  std::vector<StageUse> all;
  const auto add = [&](StageId stage) {
    all.push_back({.stage = stage,
                   .setting = fmt::format("own {}", spec.own.name),
                   .why_not_sdpa = why,
                   .why_not_kernels = why});
  };
  // Without its program, a name alone: check() refuses it.
  const OwnStage* own = find_own_stage(spec.own.name);
  if (own == nullptr) add(StageId::gate_and_bias);
  if (own != nullptr && own->visible) add(StageId::allowed);
  if (own != nullptr)
    for (const auto& [stage, formula] : own->formulas) add(stage);
  return all;
}

OwnStageCall own_call(const StageRows& rows, at::ScalarType dtype) {
  const AttentionSpec& spec = rows.call.spec;
  const at::Tensor& weight = rows.call.tensors.own;
  return {.spec = spec,
          .weight = weight.defined() ? weight.to(dtype) : at::Tensor(),
          .distance_bts = counted_distances(spec, rows.places),
          .rows = rows};
}

at::Tensor own_formula(const at::Tensor& x, const StageRows& rows) {
  const std::string& name = rows.call.spec.own.name;
  if (name.empty()) return x;
  const auto& formulas = own_stage(name).formulas;
  const auto found =
      std::ranges::find(formulas, rows.stage, &std::pair<StageId, OwnFormula>::first);
  if (found == formulas.end()) return x;
  const at::Tensor changed = found->second(x, own_call(rows, x.scalar_type()));
  require<ShapeError>(changed.defined() && changed.sizes() == x.sizes(), "own stage",
                      "'{}' must return a tensor of the shape that it got, [{}]", name,
                      fmt::join(x.sizes(), ", "));
  return changed;
}

at::Tensor own_visible(const at::Tensor& allowed, const StageRows& rows) {
  const std::string& name = rows.call.spec.own.name;
  if (name.empty()) return allowed;
  const OwnFormula& visible = own_stage(name).visible;
  if (!visible) return allowed;
  return allowed.logical_and(visible(allowed, own_call(rows, rows.call.q.scalar_type())));
}

constexpr StageFormula kOwnFormulas[] = {
    {.stage = StageId::scale, .apply = own_formula},
    {.stage = StageId::soft_cap, .apply = own_formula},
    {.stage = StageId::convolution_before, .apply = own_formula},
    {.stage = StageId::mix_before, .apply = own_formula},
    {.stage = StageId::gate_and_bias, .apply = own_formula},
    {.stage = StageId::allowed, .apply = own_formula},
    {.stage = StageId::softmax, .apply = own_formula},
    {.stage = StageId::convolution_after, .apply = own_formula},
    {.stage = StageId::mix_after, .apply = own_formula},
    {.stage = StageId::values, .apply = own_formula},
};

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
            v.nested({"own", "an attention of your own, in the stages that it names"}, spec.own);
          },
      .check = check_own_stage,
      .uses = own_stage_uses,
      .formulas = kOwnFormulas,
      .visible = own_visible,
      .tensors = kOwnStageTensors,
      .remove = [](AttentionSpec& spec) { spec.own = {}; },
  };
  return mechanism;
}

}  // namespace fovea
