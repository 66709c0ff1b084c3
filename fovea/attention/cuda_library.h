// The CUDA kernels of the program (kernels/device_library.h), with torch's memory and streams;
// loaded at the first question about a GPU's kernels.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace fovea {

/// Loads it, once, and registers its backend; empty, or why there are no CUDA kernels. Thread-safe.
/// Torch's CUDA half is loaded already (runtime/machine.h).
const std::string& why_no_cuda_kernels();

}  // namespace fovea
