// The weights of a model as tensors by name, from any kind of file.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/kernels/common/weight_format.h"

namespace fovea {

/// A file's description of one tensor. `dtype` is that of tensor(): float32 where the file is
/// quantised.
struct StoredTensor {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  /// tensor() is a matrix in these blocks (nn/matrix.h); `shape` is that of the plain one.
  std::optional<kernels::WeightFormat> packed = {};
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  /// The file that errors name.
  virtual const std::filesystem::path& path() const = 0;
  /// Sorted.
  virtual std::vector<std::string> names() const = 0;
  /// nullptr where there is none of that name.
  virtual const StoredTensor* find(std::string_view name) const = 0;
  /// A CPU tensor, read-only: a view of a mapped file where that holds plain numbers as the
  /// registry does, else a copy. It may outlive this object. CheckpointError for a missing name.
  virtual at::Tensor tensor(std::string_view name) const = 0;
  /// Lets go of the memory of what was read; reading again maps it again.
  virtual void release_pages() const = 0;
};

}  // namespace fovea
