// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include "fovea/base/error.h"
#include "fovea/base/own_library.h"
#include "fovea/runtime/device_exchange.h"
#include "fovea/runtime/machine.h"

namespace fovea {
namespace {

struct NcclLibrary {
  MakeNcclExchange make = nullptr;
  std::string why;
};

/// NCCL's 22809 is 2.28.9.
std::string version_text(int code) {
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

NcclLibrary load_nccl() {
  if (!why_no_gpu().empty()) return {.why = why_no_gpu()};
  NcclLibrary nccl;
  void* const library = open_own_library("libfovea_nccl.so", nccl.why);
  if (library == nullptr) {
    nccl.why =
        fmt::format("the library for NCCL cannot be loaded ({}): `make gpu` builds it", nccl.why);
    return nccl;
  }
  const auto versions = reinterpret_cast<NcclVersions>(dlsym(library, kNcclVersions));
  nccl.make = reinterpret_cast<MakeNcclExchange>(dlsym(library, kMakeNcclExchange));
  if (nccl.make == nullptr || versions == nullptr)
    return {.why = "libfovea_nccl.so is of another version: build it again"};
  int built = 0, loaded = 0;
  versions(built, loaded);
  // torch's objects hold structures of NCCL, whose sizes change between minor versions.
  if (built / 100 != loaded / 100)
    return {.why = fmt::format("libfovea_nccl.so was built for NCCL {}, and NCCL {} is loaded",
                               version_text(built), version_text(loaded))};
  return nccl;
}

const NcclLibrary& nccl_library() {
  static const NcclLibrary library = load_nccl();
  return library;
}

}  // namespace

const std::string& why_no_nccl() { return nccl_library().why; }

std::unique_ptr<DeviceExchange> nccl_exchange(const DeviceExchangePlace& place) {
  require<ConfigError>(why_no_nccl().empty(), "ranks",
                       "GPUs of several ranks need NCCL, but {}; or set train.device=cpu",
                       why_no_nccl());
  return std::unique_ptr<DeviceExchange>(nccl_library().make(place));
}

}  // namespace fovea
