// Tensors of which each rank holds a part, brought to rank 0 one at a time while it writes a file.
//
// All ranks add the same tensors in the same order. Then rank 0 asks for them, in any order, while
// the others serve; no rank ever holds more than one of them whole.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fovea/runtime/communicator.h"
#include "fovea/train/flat_parts.h"

namespace fovea {

class SavedParts {
 public:
  explicit SavedParts(Communicator& ranks) : ranks_(ranks) {}

  /// `own` is this rank's part of a tensor [sizes] that begins at `offset`. Returns a tensor of
  /// that shape without memory.
  at::Tensor add(const std::string& name, at::Tensor own, at::IntArrayRef sizes, int64_t offset,
                 const FlatParts& parts);

  /// On rank 0: the tensor of that name, or `given` where none was added.
  at::Tensor fetch(const std::string& name, const at::Tensor& given);
  /// On rank 0: the others return from serve().
  void end();
  /// On the others: sends parts until the end.
  void serve();

 private:
  struct Part {
    at::Tensor own;
    std::vector<int64_t> sizes;
    int64_t offset = 0;
    FlatParts parts;
  };
  at::Tensor bring(size_t number);

  Communicator& ranks_;
  std::vector<Part> parts_;
  std::map<std::string, size_t> numbers_;
};

}  // namespace fovea
