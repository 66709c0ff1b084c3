// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/runtime/reading.h"

#include <ATen/ATen.h>

#include <vector>

namespace fovea {

Reading::Reading(const at::Tensor& numbers)
    : numbers_(numbers.detach().to(at::kDouble).flatten().contiguous()) {}

Reading::Reading(double number) : numbers_(at::full({1}, number, at::kDouble)) {}

std::span<const double> Reading::values() const {
  if (!numbers_.is_cpu()) numbers_ = numbers_.cpu();
  return {numbers_.const_data_ptr<double>(), static_cast<size_t>(numbers_.numel())};
}

void Reading::together(std::span<const Reading* const> readings) {
  std::vector<const Reading*> away;
  std::vector<at::Tensor> numbers;
  std::vector<int64_t> counts;
  for (const Reading* reading : readings) {
    if (!reading->numbers_.defined() || reading->numbers_.is_cpu()) continue;
    away.push_back(reading);
    numbers.push_back(reading->numbers_);
    counts.push_back(reading->numbers_.numel());
  }
  if (away.empty()) return;
  const std::vector<at::Tensor> parts = at::cat(numbers).cpu().split_with_sizes(counts);
  for (size_t n = 0; n < away.size(); ++n) away[n]->numbers_ = parts[n];
}

}  // namespace fovea
