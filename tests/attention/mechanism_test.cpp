// The list of mechanisms: keys, tensors and stages are theirs, and nobody's else.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanism.h"

#include <gtest/gtest.h>

#include <set>

#include "fovea/base/error.h"
#include "fovea/config/reader.h"

namespace fovea::mechanism_test {
namespace {

std::set<std::string> keys_of(const auto& json) {
  std::set<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.insert(key);
  return keys;
}

TEST(Mechanisms, BringEveryKeyOfTheSpecThatIsNoSize) {
  std::set<std::string> keys = keys_of(fields_to_json(AttentionSpec{}));
  for (const char* size : {"heads", "kv_heads", "head_dim", "value_dim", "scale", "depth"})
    EXPECT_EQ(keys.erase(size), 1u) << size;
  std::set<std::string> names;
  for (const Mechanism* mechanism : mechanisms())
    EXPECT_TRUE(names.insert(std::string(mechanism->name)).second) << mechanism->name;
  EXPECT_EQ(keys, names);
}

TEST(Mechanisms, BringEveryTensorOfACall) {
  AttentionTensors tensors;
  std::set<std::string_view> names;
  std::set<const at::Tensor*> members;
  for (const auto& [name, tensor] : tensors.named()) {
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_TRUE(members.insert(tensor).second) << name;
  }
  EXPECT_EQ(members.size() * sizeof(at::Tensor), sizeof(AttentionTensors));
}

TEST(Mechanisms, AreNeutralByDefaultAndActWithEachOfTheirSettings) {
  EXPECT_TRUE(stage_uses(AttentionSpec{}).empty());
  for (const Mechanism* mechanism : mechanisms()) {
    for (const MechanismSetting& setting : mechanism->settings) {
      AttentionSpec spec{.heads = 4, .kv_heads = 2};
      setting.apply(spec);
      EXPECT_FALSE(mechanism->uses(spec).empty()) << setting.name;
      EXPECT_EQ(stage_uses(spec).size(), mechanism->uses(spec).size()) << setting.name;
      EXPECT_NO_THROW(spec.check()) << setting.name;
    }
  }
}

// The reference has no other formulas than these, those of checked_call() (stage 0) and those of
// the stages themselves.
TEST(Mechanisms, HaveAFormulaForEveryStageOfTheirSettings) {
  const std::set<std::string_view> of_the_stage{"temperature", "mask", "sink_logit"},
      of_the_call{"differential", "head_output"};
  for (const Mechanism* m : mechanisms()) {
    if (of_the_stage.contains(m->name) || of_the_call.contains(m->name)) continue;
    std::set<StageId> stages;
    for (const StageFormula& formula : m->formulas) stages.insert(formula.stage);
    if (m->rewrite_keys != nullptr) stages.insert(StageId::keys);
    if (m->visible != nullptr || m->select != nullptr) stages.insert(StageId::allowed);
    if (m->scores != nullptr) stages.insert(StageId::softmax);  // Performer takes its place
    if (m->output != nullptr) stages.insert(StageId::values);
    for (const MechanismSetting& setting : m->settings) {
      AttentionSpec spec{.heads = 4, .kv_heads = 2};
      setting.apply(spec);
      for (const StageUse& use : m->uses(spec))
        EXPECT_TRUE(stages.contains(use.stage)) << setting.name << ": " << use.setting;
    }
  }
}

TEST(Mechanisms, ThatArePutOnAModelAreRemovedAlone) {
  AttentionSpec bare{.heads = 4, .kv_heads = 2};
  bare.mask.window = 7;
  for (const Mechanism* mechanism : mechanisms()) {
    for (const MechanismSetting& setting : mechanism->settings) {
      AttentionSpec spec = bare;
      setting.apply(spec);
      EXPECT_EQ(without_added_mechanisms(spec), mechanism->remove != nullptr ? bare : spec)
          << setting.name;
    }
  }
}

TEST(Mechanisms, WithoutARemoveBelongToTheArchitecture) {
  std::set<std::string_view> names;
  for (const Mechanism* mechanism : mechanisms())
    if (mechanism->remove == nullptr) names.insert(mechanism->name);
  EXPECT_EQ(names, (std::set<std::string_view>{"soft_cap", "blocks", "bias", "mask", "dropout",
                                               "differential"}));
}

TEST(Mechanisms, RefuseTwoRulesForDistantKeys) {
  EXPECT_EQ(key_rule(AttentionSpec{}), KeyRule::mask);
  int pairs = 0;
  for (const Mechanism* a : mechanisms()) {
    for (const Mechanism* b : mechanisms()) {
      for (const MechanismSetting& one : a->settings) {
        for (const MechanismSetting& other : b->settings) {
          AttentionSpec spec{.heads = 4, .kv_heads = 2};
          one.apply(spec);
          other.apply(spec);
          const auto has_rule = [&](const Mechanism* m) {
            return m->key_rule && m->key_rule(spec);
          };
          if (a == b || !has_rule(a) || !has_rule(b)) continue;
          EXPECT_THROW(spec.check(), UnsupportedError) << one.name << " with " << other.name;
          ++pairs;
        }
      }
    }
  }
  EXPECT_EQ(pairs, 8 * 7);
}

// The settings of one stage stand in the order of the stages, whatever mechanism they are of.
TEST(Mechanisms, ActInTheOrderOfTheStages) {
  AttentionSpec spec{.heads = 4, .kv_heads = 2};
  spec.mask.window = 128;
  spec.soft_cap = 50.0;
  spec.sink_logit = true;
  spec.temperature.value = 0.4;
  EXPECT_EQ(describe_pipeline(spec), "temperature 0.4 > soft_cap 50 > window 128 > sink_logit");
}

}  // namespace
}  // namespace fovea::mechanism_test
