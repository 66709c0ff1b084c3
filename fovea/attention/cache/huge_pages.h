// Memory on huge pages, for data that decoding reads from end to end at every token: with small
// pages, address translation takes much of that time.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace fovea {

/// A block of CPU memory that is handed out from its start; tensors keep it alive. Pages stay small
/// where the system refuses (the request is only advice), and where the block ends within the first
/// half of one.
class HugePages {
 public:
  explicit HugePages(int64_t bytes);

  /// Bytes that a tensor of this size takes: whole cache lines.
  static int64_t padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }
  /// Uninitialised. ShapeError where the block is used up.
  at::Tensor allocate(const std::vector<int64_t>& shape, at::ScalarType dtype);
  /// In a block of its own, which costs memory and time only where it is used.
  static at::Tensor zeros(const std::vector<int64_t>& shape, at::ScalarType dtype);
  int64_t remaining() const { return buffer_.numel() - used_; }

 private:
  at::Tensor buffer_;  // bytes
  int64_t used_ = 0;
};

}  // namespace fovea
