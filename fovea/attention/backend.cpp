// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/backend.h"

#include <ATen/ATen.h>

#include "fovea/attention/cuda_library.h"

namespace fovea {

const kernels::Backend* backend_of(c10::Device device) {
  switch (device.type()) {
    case at::kCPU:
      return kernels::backend_of(kernels::DeviceKind::cpu);
    case at::kCUDA:
      why_no_cuda_kernels();  // loads them
      return kernels::backend_of(kernels::DeviceKind::cuda);
    case at::kPrivateUse1:
      return kernels::backend_of(kernels::DeviceKind::other);
    default:
      return nullptr;
  }
}

const kernels::Backend& backend_for(const at::Tensor& x) {
  const kernels::Backend* const backend = backend_of(x.device());
  require<UnsupportedError>(backend != nullptr, "kernels",
                            "expected a device that has kernels of ours; got {}", x.device().str());
  return *backend;
}

}  // namespace fovea
