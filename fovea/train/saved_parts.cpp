// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/train/saved_parts.h"

#include <utility>

namespace fovea {

at::Tensor SavedParts::add(const std::string& name, at::Tensor own, at::IntArrayRef sizes,
                           int64_t offset, const FlatParts& parts) {
  at::Tensor shape = without_memory(sizes, own.options());
  numbers_[name] = parts_.size();
  parts_.push_back({.own = std::move(own), .sizes = sizes.vec(), .offset = offset, .parts = parts});
  return shape;
}

at::Tensor SavedParts::bring(size_t number) {
  const Part& part = parts_[number];
  return whole_tensor(part.own, part.sizes, part.offset, part.parts, ranks_);
}

at::Tensor SavedParts::fetch(const std::string& name, const at::Tensor& given) {
  const auto found = numbers_.find(name);
  if (found == numbers_.end()) return given;
  ranks_.max(static_cast<double>(found->second) + 1.0);
  return bring(found->second);
}

void SavedParts::end() { ranks_.max(0.0); }

void SavedParts::serve() {
  // The number of the tensor that rank 0 wants, from 1; 0 at the end.
  while (const auto wanted = static_cast<size_t>(ranks_.max(0.0))) bring(wanted - 1);
}

}  // namespace fovea
