// RoutingSpec: the settings of routing attention (spec 4.3).
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

/// Routing attention in its causal form (stage 6; spec 4.3). Every head has `clusters` centroids,
/// and a token belongs to the nearest one. A query sees `keep` keys of its own cluster and
/// document, and no others: the most recent ones, or those nearest to the centroid.
struct RoutingSpec {
  enum class Choice { recent, nearest };

  int64_t clusters = 0;  ///< 0 = off
  int64_t keep = 256;    ///< w
  Choice choice = Choice::recent;

  bool active() const { return clusters > 0; }
  bool reads_nearness() const { return active() && choice == Choice::nearest; }
  void describe(FieldVisitor& v);
  void check() const;
  bool operator==(const RoutingSpec&) const = default;
};

std::span<const std::string_view> enum_names(RoutingSpec::Choice);

const Mechanism& routing_mechanism();

}  // namespace fovea
