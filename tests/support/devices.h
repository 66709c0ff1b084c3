// Where tests run: the CPU, and the GPU of a machine that has one.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "fovea/runtime/machine.h"

namespace fovea::testing {

/// choose_device() loads torch's CUDA half, which no program is linked to.
inline std::vector<at::Device> all_devices() {
  std::vector<at::Device> all{at::kCPU};
  const at::Device best = choose_device(DeviceChoice::automatic);
  if (best.is_cuda()) all.push_back(best);
  return all;
}

}  // namespace fovea::testing
