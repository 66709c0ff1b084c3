// FocusSpec: the settings of Focus (spec 11).
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

/// Bound of the strength lambda of `mul` and `logsig`, learned ones too: a gate is a step long
/// before, and lambda times an agreement stays far inside float32's range.
constexpr double kMostFocusStrength = 1e4;

/// Focus: learned groups of tokens decide which distant pairs attend (stages 5 and 6; spec 11).
/// Pairs with i - j < window and the first `sinks` positions of a document are local: the gate
/// leaves them alone.
struct FocusSpec {
  /// The new logit of a distant pair with logit s and agreement a = g_i.g_j (11.2):
  /// - `mul`: s sigma(strength a)
  /// - `log`: s + ln(a + epsilon)
  /// - `logsig`: s + ln sigma(strength (a - threshold))
  /// - `identity`: s + ln(K a + epsilon)
  /// - `hard`: s if the tokens share one of their top_k groups, else -inf
  /// - `straight_through`: s + ln(m + epsilon), m = 1 or 0 as in `hard`, gradient of a (U-8)
  enum class Gate { none, mul, log, logsig, identity, hard, straight_through };
  enum class Assignment { sinkhorn, softmax };
  /// Where the potentials b of Sinkhorn come from (11.3); `sequence` and `batch` see later tokens.
  enum class Potentials { ema, chunk, sequence, batch };

  Gate gate = Gate::none;
  int64_t groups = 8;        ///< K, at most 64
  int64_t top_k = 2;         ///< k: groups of a token under `hard`; 2k > K is full attention (U-13)
  int64_t window = 128;      ///< w
  int64_t sinks = 4;         ///< U-23
  int64_t width = 16;        ///< d_g
  double temperature = 0.1;  ///< tau of S / tau
  double strength = 10.0;    ///< lambda of `mul` and `logsig`
  bool learned_strength = true;  ///< of `logsig`: a tensor instead (U-2)
  double threshold = 0.5;        ///< theta of `logsig`
  double epsilon = 1e-6;
  Assignment assignment = Assignment::sinkhorn;
  Potentials potentials = Potentials::ema;
  int64_t rounds = 10;  ///< N of Sinkhorn
  int64_t chunk = 128;  ///< tokens of a chunk of `chunk`

  bool active() const { return gate != Gate::none; }
  /// Whether the gate reads assignments g, memberships, a learned strength.
  bool reads_groups() const { return active() && gate != Gate::hard; }
  bool reads_members() const { return gate == Gate::hard || gate == Gate::straight_through; }
  bool reads_strength() const { return gate == Gate::logsig && learned_strength; }
  /// `hard` keeps every pair, because any two choices of k among K groups meet (11.4).
  bool keeps_every_pair() const { return gate == Gate::hard && 2 * top_k > groups; }
  void describe(FieldVisitor& v);
  void check() const;
  bool operator==(const FocusSpec&) const = default;
};

std::span<const std::string_view> enum_names(FocusSpec::Gate);
std::span<const std::string_view> enum_names(FocusSpec::Assignment);
std::span<const std::string_view> enum_names(FocusSpec::Potentials);

const Mechanism& focus_mechanism();

}  // namespace fovea
