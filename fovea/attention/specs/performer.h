// Performer: softmax attention estimated by positive random features, in time and memory linear in
// the text (FAVOR+, causal; spec 4.2; Choromanski et al. 2021).
//
//   phi(x)_r = m^-1/2 (exp(w_r . x' - |x'|^2 / 2 - stab) + epsilon),   x' = x d^-1/4
//   o_i = phi(q_i) . S_i / phi(q_i) . z_i,   S_i = sum over j <= i of phi(k_j) v_j^T,
//                                            z_i = sum over j <= i of phi(k_j)
//
// Shape suffixes: m features, d key width.
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

struct PerformerSpec {
  /// Lengths of the directions w_r: of Gaussian vectors (scaling 0), or sqrt(d) (scaling 1).
  enum class Scaling { gaussian, root };
  /// What is taken from the exponents of keys: their running maximum (causal), or the maximum over
  /// the whole text, which with epsilon > 0 lets a row know of later ones.
  enum class Stabiliser { running, global };

  int64_t features = 0;  ///< m; 0 = off
  Scaling scaling = Scaling::gaussian;
  Stabiliser stabiliser = Stabiliser::running;
  double epsilon = 0.0;

  bool active() const { return features > 0; }
  void describe(FieldVisitor& v);
  void check() const;
  bool operator==(const PerformerSpec&) const = default;
};

std::span<const std::string_view> enum_names(PerformerSpec::Scaling);
std::span<const std::string_view> enum_names(PerformerSpec::Stabiliser);

const Mechanism& performer_mechanism();

}  // namespace fovea
