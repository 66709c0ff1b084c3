// Launches of kernels from the host. Every function returns 0 or a cudaError_t.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "fovea/kernels/cuda/device.cuh"
#include "fovea/kernels/cuda/stream.h"

namespace fovea::kernels::cuda {

inline dim3 grid_of(int64_t x, int64_t y, int64_t z) {
  return dim3{static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
}

#ifdef FOVEA_EMULATED
template <class... Parameters, class... Arguments>
int launch(void (*kernel)(Parameters...), dim3 grid, int threads, int shared, Stream,
           const Arguments&... arguments) {
  emulation::run(grid, threads, shared, [=] { kernel(arguments...); });
  return 0;
}
template <class... Parameters, class... Arguments>
int launch_overlapped(void (*kernel)(Parameters...), dim3 grid, int threads, int shared,
                      Stream stream, const Arguments&... arguments) {
  return launch(kernel, grid, threads, shared, stream, arguments...);
}
#else
template <class... Parameters>
int allow_shared_memory(void (*kernel)(Parameters...), int shared) {
  if (shared <= 48 * 1024) return cudaSuccess;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
}

template <class... Parameters, class... Arguments>
int launch_with(const cudaLaunchAttribute* attribute, void (*kernel)(Parameters...), dim3 grid,
                int threads, int shared, Stream stream, const Arguments&... arguments) {
  if (const int error = allow_shared_memory(kernel, shared)) return error;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = const_cast<cudaLaunchAttribute*>(attribute);
  config.numAttrs = attribute != nullptr ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}

template <class... Parameters, class... Arguments>
int launch(void (*kernel)(Parameters...), dim3 grid, int threads, int shared, Stream stream,
           const Arguments&... arguments) {
  return launch_with(nullptr, kernel, grid, threads, shared, stream, arguments...);
}

// The same for a kernel that may start before the previous one of the stream has ended; it calls
// wait_for_primary() before it reads the results of that one.
template <class... Parameters, class... Arguments>
int launch_overlapped(void (*kernel)(Parameters...), dim3 grid, int threads, int shared,
                      Stream stream, const Arguments&... arguments) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  return launch_with(&overlap, kernel, grid, threads, shared, stream, arguments...);
}
#endif

}  // namespace fovea::kernels::cuda
