// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/base/own_library.h"

#include <dlfcn.h>

#include <filesystem>

namespace fovea {
namespace {

namespace fs = std::filesystem;

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

void* open_own_library(const std::string& name, std::string& why) {
  for (const char* folder : {".", "../lib"}) {
    const fs::path file = own_folder() / folder / name;
    std::error_code ignored;
    if (!fs::exists(file, ignored)) continue;
    if (void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    why = dlerror();
    return nullptr;
  }
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) why = dlerror();
  return library;
}

}  // namespace fovea
