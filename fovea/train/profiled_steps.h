// ProfiledSteps: the steps of a run that are timed by operator, from the warm-up to the result.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "fovea/report/step_profile.h"

namespace fovea {

class ProfiledSteps {
 public:
  explicit ProfiledSteps(at::Device device);

  /// Runs `step`; behind the warm-up it is profiled.
  void measure(const std::function<void()>& step);
  bool complete() const;
  /// Costs, names and numbers of steps; the rest is the caller's.
  StepProfile result() const;

 private:
  at::Device device_;
  int64_t warmed_up_ = 0;
  StepProfile profile_;
};

}  // namespace fovea
