// Shared libraries of ours that a program loads when it needs them, beside it or in ../lib.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace fovea {

/// Its handle for dlsym(), or null and the reason. It stays loaded.
void* open_own_library(const std::string& name, std::string& why);

}  // namespace fovea
