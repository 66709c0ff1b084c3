// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/cuda_library.h"

#include <c10/core/Allocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "fovea/kernels/device_library.h"

namespace fovea {
namespace {

void* allocate(size_t bytes) { return c10::GetAllocator(c10::kCUDA)->raw_allocate(bytes); }
void release(void* memory) { c10::GetAllocator(c10::kCUDA)->raw_deallocate(memory); }
void* stream() {
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  return guard.getStream(guard.getDevice()).native_handle();
}

}  // namespace

const std::string& why_no_cuda_kernels() {
  static const std::string why =
      kernels::load_cuda_kernels({.allocate = allocate, .release = release, .stream = stream});
  return why;
}

}  // namespace fovea
