// The library of CUDA kernels: found beside the program, loaded at the first question about a GPU's
// kernels.
//
// FOVEA_CUDA_KERNELS=off leaves it out: torch's operations compute everything then. On GPUs where
// no kernel has been tried, on asks for it (docs/gpu.md).
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
