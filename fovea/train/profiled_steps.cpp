// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/train/profiled_steps.h"

#include <chrono>

#include "fovea/runtime/operator_profile.h"
#include "fovea/train/trainer.h"

namespace fovea {

ProfiledSteps::ProfiledSteps(at::Device device) : device_(device) {
  for (const std::string_view name : enum_names(OperatorKind()))
    profile_.operators.push_back({.name = std::string(name)});
  profile_.warmup = kProfileWarmup;
}

void ProfiledSteps::measure(const std::function<void()>& step) {
  if (warmed_up_ < kProfileWarmup) {
    ++warmed_up_;
    return step();
  }
  OperatorProfile listening(device_);
  const auto start = std::chrono::steady_clock::now();
  step();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const OperatorCosts costs = listening.take();
  profile_.seconds.push_back(seconds.count());
  for (size_t i = 0; i < kOperatorKinds; ++i) {
    ProfiledOperator& row = profile_.operators[i];
    row.forward_seconds.push_back(costs.forward[i].seconds);
    row.backward_seconds.push_back(costs.backward[i].seconds);
    row.forward_flops = costs.forward[i].flops;
    row.backward_flops = costs.backward[i].flops;
  }
}

bool ProfiledSteps::complete() const { return profile_.steps() >= kProfileSteps; }

StepProfile ProfiledSteps::result() const {
  StepProfile out = profile_;
  out.add_rest();
  return out;
}

}  // namespace fovea
