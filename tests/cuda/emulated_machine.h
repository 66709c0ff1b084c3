// The machine of the emulated kernels: memory of the host, a compute capability that tests choose.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/backend.h"
#include "fovea/kernels/cuda/machine.h"

namespace fovea::testing {

/// What this_machine() answers.
inline kernels::cuda::Machine emulated_machine{.major = 9, .minor = 0, .shared_bytes = 227 * 1024};

/// Pieces of device memory that are in use.
int64_t scratch_in_use();

/// The backend of the emulated kernels.
const kernels::Backend& emulated_backend();

}  // namespace fovea::testing
