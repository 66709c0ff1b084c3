// The library of CUDA kernels: found beside the program or library that asks, loaded once.
//
// FOVEA_CUDA_KERNELS=off leaves it out: torch's operations compute everything then. On GPUs where
// no kernel has been tried, on asks for it (docs/gpu.md).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "fovea/kernels/device_services.h"

namespace fovea::kernels {

/// Loads it and registers its backend; empty, or why there are no CUDA kernels. Torch's CUDA half
/// is loaded already.
std::string load_cuda_kernels(const DeviceServices& services);

}  // namespace fovea::kernels
