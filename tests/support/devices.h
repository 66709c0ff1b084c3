// Where tests run: the CPU, and the GPU of a machine that has one.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "fovea/runtime/machine.h"

namespace fovea::testing {

/// choose_device() loads torch's CUDA half, which no program is linked to; before main(), as torch
/// remembers the answer to the first question about CUDA.
inline const at::Device best_device = choose_device(DeviceChoice::automatic);

inline std::vector<at::Device> all_devices() {
  std::vector<at::Device> all{at::kCPU};
  if (best_device.is_cuda()) all.push_back(best_device);
  return all;
}

}  // namespace fovea::testing
