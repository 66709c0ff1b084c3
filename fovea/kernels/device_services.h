// DeviceServices: what the program lends to a backend that is a library of its own, and the one
// function by which the program gets that backend.
//
// Kernels allocate scratch by the program's allocator and run in its current stream, so that they
// share memory and order with torch's operations without knowing torch.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "fovea/kernels/backend.h"

namespace fovea::kernels {

/// They act on the current device of the calling thread.
struct DeviceServices {
  /// Memory that later work of the current stream may use; MemoryError where there is not enough.
  void* (*allocate)(size_t bytes) = nullptr;
  /// The memory may serve others once the work that is in the stream now has run.
  void (*release)(void* memory) = nullptr;
  /// The current stream: a cudaStream_t.
  void* (*stream)() = nullptr;
};

/// Null, and the reason in `why_not`, where the library has no kernels for this machine.
/// `kernels_size`: sizeof(Kernels) of the program, which differs where library and program are of
/// different builds.
using MakeBackend = const Backend* (*)(const DeviceServices& services, size_t kernels_size,
                                       std::string& why_not);
/// The name of that function in a library.
inline constexpr const char* kMakeBackend = "fovea_make_backend";

}  // namespace fovea::kernels
