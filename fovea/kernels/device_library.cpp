// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/device_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

#include "fovea/base/own_library.h"

namespace fovea::kernels {
namespace {

/// The kernels that a GPU has run (docs/gpu.md).
constexpr std::string_view kTried = "sm_90a";

}  // namespace

std::string load_cuda_kernels(const DeviceServices& services) {
  const char* const given = std::getenv("FOVEA_CUDA_KERNELS");
  const std::string_view wanted = given != nullptr ? given : "";
  if (wanted == "off") return "the CUDA kernels are off (FOVEA_CUDA_KERNELS=off)";
  std::string why;
  void* const library = open_own_library("libfovea_cuda.so", why);
  if (library == nullptr) return fmt::format("the CUDA kernels cannot be loaded ({})", why);
  const auto make = reinterpret_cast<MakeBackend>(dlsym(library, kMakeBackend));
  if (make == nullptr) return "libfovea_cuda.so is of another version";
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
