// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/cuda_library.h"

#include <c10/core/Allocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "fovea/kernels/device_services.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;

void* allocate(size_t bytes) { return c10::GetAllocator(c10::kCUDA)->raw_allocate(bytes); }
void release(void* memory) { c10::GetAllocator(c10::kCUDA)->raw_deallocate(memory); }
void* stream() {
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  return guard.getStream(guard.getDevice()).native_handle();
}

/// The folder of the program or library that this code is part of.
fs::path own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr)
    return {};
  std::error_code ignored;
  const fs::path file = fs::canonical(info.dli_fname, ignored);
  return file.parent_path();
}

std::string load() {
  const char* const wanted = std::getenv("FOVEA_CUDA_KERNELS");
  if (wanted != nullptr && std::string_view(wanted) == "off")
    return "the CUDA kernels are off (FOVEA_CUDA_KERNELS=off)";
  void* library = nullptr;
  for (const char* folder : {".", "../lib"}) {
    const fs::path file = own_folder() / folder / "libfovea_cuda.so";
    if (library == nullptr) library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) library = dlopen("libfovea_cuda.so", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return fmt::format("the CUDA kernels cannot be loaded ({})", dlerror());
  const auto make = reinterpret_cast<kernels::MakeBackend>(dlsym(library, kernels::kMakeBackend));
  if (make == nullptr) return "libfovea_cuda.so is of another version";
  std::string why;
  const kernels::Backend* const backend = make(
      {.allocate = allocate, .release = release, .stream = stream}, sizeof(kernels::Kernels), why);
  if (backend != nullptr) kernels::register_backend(kernels::DeviceKind::cuda, backend);
  return why;
}

}  // namespace

const std::string& why_no_cuda_kernels() {
  static const std::string why = load();
  return why;
}

}  // namespace fovea
