// BiasSpec: the settings of position biases (spec 6.3, 6.4).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "fovea/config/fields.h"

namespace fovea {

struct Mechanism;

/// Additive position bias, after the scale (stage 5).
struct BiasSpec {
  enum class Kind { none, alibi, t5 };
  Kind kind = Kind::none;
  int64_t buckets = 32;        ///< t5: table rows
  int64_t max_distance = 128;  ///< t5

  void describe(FieldVisitor& v);
  bool operator==(const BiasSpec&) const = default;
};

std::span<const std::string_view> enum_names(BiasSpec::Kind);

const Mechanism& position_bias_mechanism();

}  // namespace fovea
