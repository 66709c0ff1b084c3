// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/runtime/communicator.h"

#include <ATen/ATen.h>

#include <numeric>
#include <vector>

namespace fovea {
namespace {

class Alone final : public Communicator {
 public:
  using Communicator::max;
  using Communicator::sum;

  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  void sum(std::span<double> /*values*/) override {}
  void max(std::span<double> /*values*/) override {}
  void sum(std::span<const at::Tensor> /*tensors*/) override {}
  void broadcast(std::span<const at::Tensor> /*tensors*/, int64_t /*from*/) override {}
  void barrier() override {}
};

}  // namespace

double Communicator::sum(double value) {
  sum(std::span(&value, 1));
  return value;
}

double Communicator::max(double value) {
  max(std::span(&value, 1));
  return value;
}

bool Communicator::any(bool holds) { return max(holds ? 1.0 : 0.0) > 0.0; }

at::Tensor Communicator::sum(const at::Tensor& tensor) {
  if (size() == 1) return tensor;
  const at::Tensor all = tensor.clone();
  sum(std::span(&all, 1));
  return all;
}

at::Tensor Communicator::gather(const at::Tensor& tensor) {
  if (size() == 1) return tensor.unsqueeze(0);
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), size());
  at::Tensor all = at::zeros(sizes, tensor.options().requires_grad(false));
  all[rank()].copy_(tensor);
  sum(std::span<const at::Tensor>(&all, 1));
  return all;
}

at::Tensor Communicator::gather_rows(const at::Tensor& rows) {
  if (size() == 1) return rows;
  std::vector<double> counts(static_cast<size_t>(size()), 0.0);
  counts[static_cast<size_t>(rank())] = static_cast<double>(rows.size(0));
  sum(counts);
  const auto count = [](auto begin, auto end) {
    return static_cast<int64_t>(std::accumulate(begin, end, 0.0));
  };
  std::vector<int64_t> sizes = rows.sizes().vec();
  sizes[0] = count(counts.begin(), counts.end());
  at::Tensor all = at::zeros(sizes, rows.options().requires_grad(false));
  all.narrow(0, count(counts.begin(), counts.begin() + rank()), rows.size(0)).copy_(rows);
  sum(std::span<const at::Tensor>(&all, 1));
  return all;
}

Communicator& alone() {
  static Alone ranks;
  return ranks;
}

}  // namespace fovea
