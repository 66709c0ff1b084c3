// Sets of parameters by origin and mechanism: what `train.trainable` names.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/parameter_set.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "fovea/nn/transformer.h"
#include "tests/support/expect_error.h"

namespace fovea::parameter_set_test {
namespace {

using namespace fovea::testing;

ModelConfig with_everything() {
  ModelConfig c{.layers = 2, .width = 24, .heads = 4};
  c.attention.spec.temperature.kind = TemperatureSpec::Kind::learned;
  c.attention.spec.sink_logit = true;
  c.attention.spec.multi_token.before = {2, 3};
  c.attention.spec.head_mix.before = HeadMixSpec::Kind::full;
  c.attention.spec.head_output.norm = HeadOutputSpec::Norm::rms;
  c.attention.spec.focus = {.gate = FocusSpec::Gate::log, .groups = 4, .width = 6};
  c.lora = {.rank = 2};
  return c.resolved(50);
}

TEST(ParameterSet, EveryAddedParameterIsOfOneMechanismAndTheBaseOfNone) {
  const Transformer model(with_everything(), 1);
  std::set<std::string> mechanisms;
  for (const Parameter& p : model.parameters().all()) {
    EXPECT_EQ(p.mechanism.empty(), p.origin == Parameter::Origin::base) << p.name;
    if (p.mechanism.empty()) continue;
    mechanisms.emplace(p.mechanism);
    EXPECT_TRUE(ParameterSet::parse(p.mechanism, "key").contains(p)) << p.name;
    EXPECT_TRUE(model.has(p.mechanism));
  }
  EXPECT_EQ(mechanisms, (std::set<std::string>{"focus", "head_mix", "head_output", "lora",
                                               "multi_token", "sink_logit", "temperature"}));
  EXPECT_FALSE(model.has("routing"));
}

TEST(ParameterSet, NamesJoinOriginsAndMechanismsInAnyOrder) {
  const Transformer model(with_everything(), 1);
  const auto chosen = [&](const char* text) {
    std::set<std::string> names;
    const ParameterSet set = ParameterSet::parse(text, "key");
    for (const Parameter& p : model.parameters().all())
      if (set.contains(p)) names.insert(p.name);
    return names;
  };
  const size_t all = model.parameters().all().size();
  EXPECT_EQ(chosen("all").size(), all);
  EXPECT_EQ(chosen("base+added").size(), all);
  EXPECT_EQ(chosen("base").size() + chosen("added").size(), all);
  EXPECT_EQ(chosen("focus+lora").size(), chosen("focus").size() + chosen("lora").size());
  EXPECT_TRUE(chosen("temperature").contains("model.layers.1.self_attn.temperature.bias"));
  EXPECT_EQ(ParameterSet::parse("focus+lora", "key"), ParameterSet::parse("lora+focus", "key"));
}

TEST(ParameterSet, UnknownNamesAreRefusedWithTheLegalOnes) {
  for (const char* text : {"", "focus+", "everything", "focus,lora", "focus lora"}) {
    EXPECT_ERROR(ConfigError, ParameterSet::parse(text, "train.trainable"), "train.trainable",
                 "focus", "lora", "base");
  }
}

}  // namespace
}  // namespace fovea::parameter_set_test
