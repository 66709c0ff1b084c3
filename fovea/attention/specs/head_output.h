// HeadOutputSpec: norm, constant of the depth and gate of each head's output (stage 10).
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

/// Norm, constant of the depth and gate of each head's output o_i (stage 10; 3.2 steps 10 and 11).
struct HeadOutputSpec {
  enum class Norm { none, rms };  ///< RMSNorm per head with one gain [e] for all heads
  /// A constant of the depth l: `lambda` 1 - lambda_init(l) (1.2), `inverse_sqrt` 1/sqrt(l+1)
  /// (M-8).
  enum class DepthScale { none, lambda, inverse_sqrt };
  /// `scalar`: o sigma(u.o + c); `full`: o sigma(U o + c) element by element. u, U, c are shared by
  /// the heads and see the normed output (M-6).
  enum class Gate { none, scalar, full };

  Norm norm = Norm::none;
  double norm_eps = 1e-5;
  DepthScale depth_scale = DepthScale::none;
  Gate gate = Gate::none;

  bool active() const { return *this != HeadOutputSpec{}; }
  /// The factor of `depth_scale` in layer `depth`, counted from 0.
  double factor(int64_t depth) const;
  void describe(FieldVisitor& v);
  void check() const;
  bool operator==(const HeadOutputSpec&) const = default;
};

std::span<const std::string_view> enum_names(HeadOutputSpec::Norm);
std::span<const std::string_view> enum_names(HeadOutputSpec::DepthScale);
std::span<const std::string_view> enum_names(HeadOutputSpec::Gate);

const Mechanism& head_output_mechanism();

}  // namespace fovea
