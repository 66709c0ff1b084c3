// The stream that kernels are launched in. Nothing else of the host side: units of kernels include
// it, and are not compiled again when that changes.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fovea::kernels::cuda {

/// A cudaStream_t.
using Stream = void*;

}  // namespace fovea::kernels::cuda
