// The CUDA kernels, emulated, as those of the fake device: calls of attention() reach them by the
// way that they take on a GPU.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fovea::testing {

/// The fake device has them while it lives. One at a time.
class FakeDeviceKernels {
 public:
  FakeDeviceKernels();
  ~FakeDeviceKernels();
  FakeDeviceKernels(const FakeDeviceKernels&) = delete;
  FakeDeviceKernels& operator=(const FakeDeviceKernels&) = delete;
};

}  // namespace fovea::testing
