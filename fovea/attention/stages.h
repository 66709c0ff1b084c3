// The stage table: the one order in which attention's stages act, as data (spec 0.1).
//
// The reference walks over it, and the table in the docs is made from it. Each mechanism has a
// formula for the stages in which it acts (mechanism.h).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/attention/spec.h"
#include "fovea/attention/stage_id.h"

namespace fovea {

struct Stage {
  StageId id;
  std::string_view name;
  std::string_view formula;

  /// From 0; those of the pipeline of the papers begin at 1.
  int number() const { return static_cast<int>(id); }
  /// The settings of `spec` that act in this stage, empty when it is neutral.
  std::vector<std::string> active(const AttentionSpec& spec) const;
};

std::span<const Stage> attention_stages();
const Stage& stage_of(StageId id);

/// "temperature 0.4 > soft_cap 50 > window 128": the active settings in order.
std::string describe_pipeline(const AttentionSpec& spec);

}  // namespace fovea
