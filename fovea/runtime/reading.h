// Numbers of a device on their way to the host. Each arrival makes the host wait for the device, so
// that numbers of one step come together.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

namespace fovea {

/// The numbers of a tensor, in float64. They stay on their device until somebody asks for one.
class Reading {
 public:
  Reading() = default;
  explicit Reading(const at::Tensor& numbers);
  explicit Reading(double number);

  bool defined() const { return numbers_.defined(); }
  /// Brings the numbers to the host if they are not there.
  double value(int64_t index = 0) const { return values()[static_cast<size_t>(index)]; }
  std::span<const double> values() const;
  /// Brings those of all with one wait a device.
  static void together(std::span<const Reading* const> readings);

 private:
  mutable at::Tensor numbers_;  // float64, flat
};

}  // namespace fovea
