// Numbers of several tensors laid end to end, and cut into one part a rank.
//
// All parts have one length, so that one ring gathers them; the last ones may be shorter, or empty.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <utility>

#include "fovea/runtime/communicator.h"

namespace fovea {

struct FlatParts {
  int64_t numbers = 0, ranks = 1;

  /// Numbers of a part.
  int64_t length() const { return (numbers + ranks - 1) / ranks; }
  /// Begin and end of a rank's part.
  std::pair<int64_t, int64_t> range(int64_t rank) const;
  /// The numbers of a contiguous tensor, which begins at `offset`, that belong to a rank.
  at::Tensor part(const at::Tensor& whole, int64_t offset, int64_t rank) const;
};

/// A contiguous tensor and its place in the numbers.
struct PlacedTensor {
  at::Tensor tensor;
  int64_t offset = 0;
};

/// The ranks' parts of these tensors, in place: each rank sends its own by a ring. All ranks call
/// it with the same tensors.
void gather_parts(std::span<const PlacedTensor> tensors, const FlatParts& parts,
                  Communicator& ranks);

/// The whole tensor [sizes] that begins at `offset`, of which this rank has the part `own`. All
/// ranks call it.
at::Tensor whole_tensor(const at::Tensor& own, at::IntArrayRef sizes, int64_t offset,
                        const FlatParts& parts, Communicator& ranks);

/// A tensor of this shape without memory, for a parameter that is elsewhere: reading it gives NaN,
/// writing it is an error.
at::Tensor without_memory(at::IntArrayRef sizes, const at::TensorOptions& options);

}  // namespace fovea
