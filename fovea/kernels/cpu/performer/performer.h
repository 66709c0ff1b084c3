// Performer by prefix sums of features on the CPU (kernels/common/performer.h).
//
// A key head of a sequence, with its query heads, is one thread's: results have the same bits for
// any batch and number of threads. The instruction set is chosen_isa().
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "fovea/kernels/common/performer.h"

namespace fovea::kernels {

void run(const PerformerForward& problem);
void run(const PerformerBackward& problem);

/// The instruction set that runs them: scalar, avx2 or avx512.
std::string_view performer_isa();

/// A key head of a sequence: the work of one thread.
struct PerformerUnit {
  int64_t b = 0, g = 0;
  const PerformerChunk* chunks = nullptr;
  int64_t count = 0;
  int64_t first_state = 0;   ///< floats before its states
  float* scratch = nullptr;  ///< aligned to vectors, numbers of any kind
};

/// The functions of one instruction set.
struct PerformerTable {
  void (*forward)(const PerformerForward&, const PerformerUnit&);
  void (*backward)(const PerformerBackward&, const PerformerUnit&);
  int64_t (*scratch)(const PerformerInputs&);  ///< floats that either needs
};

}  // namespace fovea::kernels
