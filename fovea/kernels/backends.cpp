// The backend of each kind of device.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <atomic>

#include "fovea/base/error.h"
#include "fovea/kernels/backend.h"

namespace fovea::kernels {
namespace {

std::atomic<const Backend*> of_cuda = nullptr, of_other = nullptr;

std::atomic<const Backend*>& registered(DeviceKind device) {
  return device == DeviceKind::cuda ? of_cuda : of_other;
}

}  // namespace

const Backend* backend_of(DeviceKind device) {
  return device == DeviceKind::cpu ? &cpu() : registered(device).load();
}

void register_backend(DeviceKind device, const Backend* backend) {
  require<ConfigError>(device != DeviceKind::cpu, "kernels",
                       "expected a device other than the CPU, whose backend is built in");
  registered(device) = backend;
}

}  // namespace fovea::kernels
