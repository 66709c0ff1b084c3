// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/device_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>

namespace fovea::kernels {
namespace {

namespace fs = std::filesystem;

/// The kernels that a GPU has run (docs/gpu.md).
constexpr std::string_view kTried = "sm_90a";

/// The folder of the program or library that this code is part of.
fs::path own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr)
    return {};
  std::error_code ignored;
  const fs::path file = fs::canonical(info.dli_fname, ignored);
  return file.parent_path();
}

}  // namespace

std::string load_cuda_kernels(const DeviceServices& services) {
  const char* const given = std::getenv("FOVEA_CUDA_KERNELS");
  const std::string_view wanted = given != nullptr ? given : "";
  if (wanted == "off") return "the CUDA kernels are off (FOVEA_CUDA_KERNELS=off)";
  void* library = nullptr;
  for (const char* folder : {".", "../lib"}) {
    const fs::path file = own_folder() / folder / "libfovea_cuda.so";
    if (library == nullptr) library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) library = dlopen("libfovea_cuda.so", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return fmt::format("the CUDA kernels cannot be loaded ({})", dlerror());
  const auto make = reinterpret_cast<MakeBackend>(dlsym(library, kMakeBackend));
  if (make == nullptr) return "libfovea_cuda.so is of another version";
  std::string why;
  const Backend* const backend = make(services, sizeof(Kernels), why);
  if (backend == nullptr) return why;
  const std::string_view isa = backend->isa<AttentionForward<BFloat16>>();
  if (wanted != "on" && !isa.starts_with(kTried))
    return fmt::format(
        "the CUDA kernels have run on GPUs of compute capability 9.0 alone; those of this one are "
        "{}: FOVEA_CUDA_KERNELS=on asks for them",
        isa);
  register_backend(DeviceKind::cuda, backend);
  return {};
}

}  // namespace fovea::kernels
