// Weights for inference: matrices in the number format of the computation, side by side in memory.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <sys/mman.h>

#include "fovea/nn/transformer_impl.h"

namespace fovea {
namespace {

constexpr int64_t kHugePage = int64_t{1} << 21;
constexpr int64_t kAlign = 64;  // bytes: a cache line

bool is_matrix(const Parameter& p) {
  return p.name.ends_with("_proj.weight") || p.name.ends_with("embed_tokens.weight") ||
         p.name == "lm_head.weight";
}

int64_t padded(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/// `bytes` on huge pages where the system gives them: decoding reads every weight once a token, and
/// with small pages a sixth of that time goes into finding them (benchmarks/decode.py).
at::Tensor huge_buffer(int64_t bytes) {
  const at::Tensor buffer = at::empty({bytes + kHugePage}, at::kByte);
  const auto at = reinterpret_cast<uintptr_t>(buffer.data_ptr());
  const auto offset = static_cast<int64_t>((kHugePage - at % kHugePage) % kHugePage);
  // Only advice: where it is refused the pages stay small.
  madvise(static_cast<char*>(buffer.data_ptr()) + offset, static_cast<size_t>(bytes),
          MADV_HUGEPAGE);
  return buffer.narrow(0, offset, bytes);
}

}  // namespace

void Transformer::hold_matrices_in(at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  const auto item = static_cast<int64_t>(at::elementSize(dtype));
  int64_t bytes = 0, used = 0;
  for (const Parameter& p : impl_->registry.all())
    if (is_matrix(p)) bytes += padded(p.value.numel() * item);
  const at::Tensor buffer = impl_->device.is_cpu() ? huge_buffer(bytes) : at::Tensor();
  for (Parameter& p : impl_->registry.all()) {
    p.trainable = false;
    p.value.set_requires_grad(false);
    if (!is_matrix(p)) continue;
    at::Tensor held;
    if (buffer.defined()) {
      const int64_t size = p.value.numel() * item;
      held = buffer.narrow(0, used, size).view(dtype).view(p.value.sizes());
      held.copy_(p.value);
      used += padded(size);
    } else {
      held = p.value.to(dtype);
    }
    p.value.set_data(held);  // the layers hold the same tensor
  }
}

}  // namespace fovea
