// Host side: launching a kernel with dynamic shared memory, on the device or in the emulation.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "prims.cuh"
#ifdef FOVEA_EMULATE
using Stream = int;
template <class K, class... A>
int launch(K kernel, int gx, int gy, int threads, int smem, Stream, A... args) {
  for (int y = 0; y < gy; y++)
    for (int x = 0; x < gx; x++)
      emu::run_block(x, y, gx, gy, threads, smem, [&] { kernel(args...); });
  return 0;
}
inline int clear(void* p, size_t n, Stream) {
  std::memset(p, 0, n);
  return 0;
}
inline int copy_device(void* d, const void* s, size_t n, Stream) {
  std::memmove(d, s, n);
  return 0;
}
#else
using Stream = cudaStream_t;
template <class... P, class... A>
int launch(void (*kernel)(P...), int gx, int gy, int threads, int smem, Stream stream, A... args) {
  cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
  if (e != cudaSuccess) return e;
  // clang-format off
  kernel<<<dim3(gx, gy), threads, smem, stream>>>(args...);
  // clang-format on
  return cudaGetLastError();
}
inline int clear(void* p, size_t n, Stream s) { return cudaMemsetAsync(p, 0, n, s); }
inline int copy_device(void* d, const void* s, size_t n, Stream st) {
  return cudaMemcpyAsync(d, s, n, cudaMemcpyDeviceToDevice, st);
}
#endif
