// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/backend.h"

#include "fovea/base/error.h"

namespace fovea::kernels {

std::string Backend::no_kernel() const {
  return fmt::format("the {} backend has no such kernel", name());
}

void Backend::refuse() const { fail<UnsupportedError>("kernels", "{}", no_kernel()); }

}  // namespace fovea::kernels
