// A tensor of a device together with its copy on the host: state that the host reads in every step
// and that seldom changes.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fovea {

/// The host's copy of one tensor. It is fetched again only where somebody else wrote the tensor,
/// which torch counts.
class HostCopy {
 public:
  /// x on the CPU; x itself where it is there.
  const at::Tensor& of(const at::Tensor& x) {
    if (x.is_cpu()) return copy_ = x;
    if (!copy_.defined() || version_ != x._version()) copy_ = x.detach().cpu();
    version_ = x._version();
    return copy_;
  }
  /// Writes numbers of the CPU to both.
  void write(const at::Tensor& x, const at::Tensor& numbers) {
    x.copy_(numbers);
    copy_ = numbers;
    version_ = x._version();
  }

 private:
  at::Tensor copy_;
  int64_t version_ = -1;
};

}  // namespace fovea
