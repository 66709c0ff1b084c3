// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/cuda_library.h"

#include <c10/core/Allocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

#include "fovea/kernels/device_services.h"
#include "fovea/runtime/own_library.h"

namespace fovea {
namespace {

/// The kernels that a GPU has run (docs/gpu.md).
constexpr std::string_view kTried = "sm_90a";

void* allocate(size_t bytes) { return c10::GetAllocator(c10::kCUDA)->raw_allocate(bytes); }
void release(void* memory) { c10::GetAllocator(c10::kCUDA)->raw_deallocate(memory); }
void* stream() {
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  return guard.getStream(guard.getDevice()).native_handle();
}

std::string load() {
  const char* const given = std::getenv("FOVEA_CUDA_KERNELS");
  const std::string_view wanted = given != nullptr ? given : "";
  if (wanted == "off") return "the CUDA kernels are off (FOVEA_CUDA_KERNELS=off)";
  std::string why_not;
  void* const library = open_own_library("libfovea_cuda.so", why_not);
  if (library == nullptr) return fmt::format("the CUDA kernels cannot be loaded ({})", why_not);
  const auto make = reinterpret_cast<kernels::MakeBackend>(dlsym(library, kernels::kMakeBackend));
  if (make == nullptr) return "libfovea_cuda.so is of another version";
  std::string why;
  const kernels::Backend* const backend = make(
      {.allocate = allocate, .release = release, .stream = stream}, sizeof(kernels::Kernels), why);
  if (backend == nullptr) return why;
  const std::string_view isa = backend->isa<kernels::AttentionForward<BFloat16>>();
  if (wanted != "on" && !isa.starts_with(kTried))
    return fmt::format(
        "the CUDA kernels have run on GPUs of compute capability 9.0 alone; those of this one are "
        "{}: FOVEA_CUDA_KERNELS=on asks for them",
        isa);
  kernels::register_backend(kernels::DeviceKind::cuda, backend);
  return {};
}

}  // namespace

const std::string& why_no_cuda_kernels() {
  static const std::string why = load();
  return why;
}

}  // namespace fovea
