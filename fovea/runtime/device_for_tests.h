// A device that no setting names, for tests which run the whole program there.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace fovea {

/// While one lives, choose_device() (machine.h) answers its device, whatever is asked for. One at a
/// time.
class DeviceForTests {
 public:
  explicit DeviceForTests(at::Device device);
  ~DeviceForTests();
  DeviceForTests(const DeviceForTests&) = delete;
  DeviceForTests& operator=(const DeviceForTests&) = delete;
};

}  // namespace fovea
