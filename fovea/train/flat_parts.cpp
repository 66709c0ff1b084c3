// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/train/flat_parts.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>

#include "fovea/runtime/ring_gather.h"

namespace fovea {
namespace {

/// copy(numbers of a tensor, where they lie in [begin, end)) for each tensor that has some there.
template <class Copy>
void each_piece(std::span<const PlacedTensor> tensors, int64_t begin, int64_t end,
                const Copy& copy) {
  for (const auto& [tensor, offset] : tensors) {
    const int64_t from = std::max(begin, offset), to = std::min(end, offset + tensor.numel());
    if (from >= to) continue;
    copy(tensor.detach().view(-1).narrow(0, from - offset, to - from), from - begin);
  }
}

}  // namespace

std::pair<int64_t, int64_t> FlatParts::range(int64_t rank) const {
  return {std::min(rank * length(), numbers), std::min((rank + 1) * length(), numbers)};
}

at::Tensor FlatParts::part(const at::Tensor& whole, int64_t offset, int64_t rank) const {
  const auto [from, to] = range(rank);
  const int64_t begin = std::clamp<int64_t>(from - offset, 0, whole.numel());
  const int64_t end = std::clamp<int64_t>(to - offset, 0, whole.numel());
  return whole.detach().view(-1).narrow(0, begin, end - begin);
}

void gather_parts(std::span<const PlacedTensor> tensors, const FlatParts& parts,
                  Communicator& ranks) {
  if (ranks.size() == 1 || tensors.empty()) return;
  const at::NoGradGuard no_grad;
  const int64_t length = parts.length();
  const int64_t columns =
      std::min(length, std::max<int64_t>(1, ring_bytes(ranks.size()) / (4 * ranks.size())));
  const at::Tensor rows =
      at::zeros({ranks.size(), columns}, tensors.front().tensor.options().requires_grad(false));
  const auto each_of_rank = [&](int64_t rank, int64_t column, const auto& copy) {
    const auto [begin, end] = parts.range(rank);
    const int64_t from = std::min(begin + column, end), to = std::min(from + columns, end);
    each_piece(tensors, from, to, [&](const at::Tensor& numbers, int64_t place) {
      copy(numbers, rows[rank].narrow(0, place, numbers.numel()));
    });
  };
  for (int64_t column = 0; column < length; column += columns) {
    each_of_rank(ranks.rank(), column,
                 [](const at::Tensor& numbers, const at::Tensor& row) { row.copy_(numbers); });
    ring_gather(rows, ranks);
    for (int64_t rank = 0; rank < ranks.size(); ++rank)
      if (rank != ranks.rank())
        each_of_rank(rank, column,
                     [](const at::Tensor& numbers, const at::Tensor& row) { numbers.copy_(row); });
  }
}

at::Tensor whole_tensor(const at::Tensor& own, at::IntArrayRef sizes, int64_t offset,
                        const FlatParts& parts, Communicator& ranks) {
  const at::NoGradGuard no_grad;
  at::Tensor whole = at::empty(sizes, own.options().requires_grad(false));
  parts.part(whole, offset, ranks.rank()).copy_(own);
  for (int64_t rank = 0; rank < ranks.size(); ++rank)
    if (const at::Tensor part = parts.part(whole, offset, rank); part.numel() > 0)
      ranks.broadcast(std::span(&part, 1), rank);
  return whole;
}

at::Tensor without_memory(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::full({}, std::numeric_limits<double>::quiet_NaN(), options.requires_grad(false))
      .expand(sizes);
}

}  // namespace fovea
