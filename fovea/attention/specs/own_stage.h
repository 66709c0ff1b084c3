// OwnStageSpec: the attention that a program registered (mechanisms/own_stage.h).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fovea/config/fields.h"

namespace fovea {

struct Mechanism;

/// An attention that this program registered.
struct OwnStageSpec {
  std::string name;            ///< "" = none
  std::vector<double> values;  ///< numbers that it reads

  bool active() const { return !name.empty(); }
  void describe(FieldVisitor& v);
  bool operator==(const OwnStageSpec&) const = default;
};

const Mechanism& own_stage_mechanism();

}  // namespace fovea
