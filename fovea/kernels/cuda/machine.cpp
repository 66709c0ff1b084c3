// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cuda/machine.h"

#include <cuda_runtime_api.h>

#include "fovea/base/error.h"

namespace fovea::kernels::cuda {
namespace {

DeviceServices lent;

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, which, device) == cudaSuccess ? value : 0;
}

}  // namespace

Machine this_machine() {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return {};
  return {.major = attribute(cudaDevAttrComputeCapabilityMajor, device),
          .minor = attribute(cudaDevAttrComputeCapabilityMinor, device),
          .shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device)};
}

void copy_to_device(void* to, const void* from, int64_t bytes, Stream stream) {
  check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice,
                        static_cast<cudaStream_t>(stream)),
        "a copy to the GPU");
}

void copy_to_host(void* to, const void* from, int64_t bytes, Stream stream) {
  check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost,
                        static_cast<cudaStream_t>(stream)),
        "a copy from the GPU");
  check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "the GPU's work");
}

void copy_on_device(void* to, const void* from, int64_t bytes, Stream stream) {
  check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice,
                        static_cast<cudaStream_t>(stream)),
        "a copy on the GPU");
}

void fill_with_zeros(void* to, int64_t bytes, Stream stream) {
  check(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), static_cast<cudaStream_t>(stream)),
        "clearing memory of the GPU");
}

void check(int error, const char* where) {
  if (error == cudaSuccess) return;
  const char* const name = cudaGetErrorName(static_cast<cudaError_t>(error));
  if (error == cudaErrorMemoryAllocation)
    fail<MemoryError>("cuda", "expected memory of the GPU for {}; got {}: use smaller batches",
                      where, name);
  fail<Error>("cuda", "expected {} to run; got {}", where, name);
}

const DeviceServices& services() { return lent; }
void set_services(const DeviceServices& services) { lent = services; }

}  // namespace fovea::kernels::cuda
