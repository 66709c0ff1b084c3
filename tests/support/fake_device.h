// A device in host memory whose pulls to the host are counted: a GPU's rules on machines without
// one.
//
// Its tensors are not on the CPU, so everything takes the operations of a GPU. Torch's CPU kernels
// compute them. The addresses that tensors show cannot be read or written: a kernel of ours that
// takes one ends the program. Operations refuse tensors of both sides, as CUDA's do.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fovea::testing {

inline at::Device fake_device() { return {at::kPrivateUse1, 0}; }

/// The bytes behind an address that tensors of the device show; null for null.
void* bytes_behind(const void* address);

/// One wait of the host for the device: a number or a tensor that came back, or a result whose size
/// depends on values.
struct Pull {
  std::string operation;  ///< "aten::_local_scalar_dense"
  std::string place;      ///< the innermost of our functions that the linker knows
};

/// The pulls of all threads while it lives. One at a time.
class CountedPulls {
 public:
  CountedPulls();
  ~CountedPulls();
  CountedPulls(const CountedPulls&) = delete;
  CountedPulls& operator=(const CountedPulls&) = delete;

  int64_t count() const;
  /// One line a place and operation: "3 x aten::equal in fovea::make_mask_plan".
  std::string text() const;
};

/// While one lives, the device has no more than `bytes` of memory: what needs more throws torch's
/// error with the words of CUDA's allocator.
class FakeMemoryLimit {
 public:
  explicit FakeMemoryLimit(int64_t bytes);
  ~FakeMemoryLimit();
  FakeMemoryLimit(const FakeMemoryLimit&) = delete;
  FakeMemoryLimit& operator=(const FakeMemoryLimit&) = delete;
};

}  // namespace fovea::testing
