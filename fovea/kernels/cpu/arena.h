// Scratch memory that is handed out piece by piece.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/kernels/common/bfloat16.h"

namespace fovea::kernels {

/// Hands out memory from its front, in whole cache lines; without memory it only counts. All is
/// inlined, because units of several instruction sets have it.
class Arena {
 public:
  FOVEA_INLINE explicit Arena(float* memory) : memory_(memory) {}
  FOVEA_INLINE float* allocate(int64_t floats) {
    float* const begin = memory_ != nullptr ? memory_ + used_ : nullptr;
    used_ += (floats + 15) / 16 * 16;
    return begin;
  }
  FOVEA_INLINE int64_t used() const { return used_; }

 private:
  float* memory_;
  int64_t used_ = 0;
};

}  // namespace fovea::kernels
