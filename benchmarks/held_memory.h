// Memory of a call beyond torch's tensors: what it takes by operator new, counted.
//
// A program that links held_memory.cpp counts every operator new. Kernels and plans take their
// memory there; torch's tensors, inputs and outputs, come from elsewhere.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace fovea {

/// The most bytes that a call holds at one time, buffers that a thread keeps between calls
/// included: it runs in a thread that never called before.
int64_t bytes_held_during(const std::function<void()>& action);

}  // namespace fovea
