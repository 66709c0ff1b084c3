// Where tests run: the CPU, and the GPU of a machine that has one. In the program of tests/device
// it is the fake device.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "fovea/runtime/machine.h"
#ifdef FOVEA_FAKE_DEVICE
#include "tests/support/fake_device.h"
#endif

namespace fovea::testing {

/// choose_device() loads torch's CUDA half, which no program is linked to; before main(), as torch
/// remembers the answer to the first question about CUDA.
inline const at::Device best_device = choose_device(DeviceChoice::automatic);

inline std::vector<at::Device> all_devices() {
#ifdef FOVEA_FAKE_DEVICE
  return {fake_device()};
#endif
  std::vector<at::Device> all{at::kCPU};
  if (best_device.is_cuda()) all.push_back(best_device);
  return all;
}

}  // namespace fovea::testing
