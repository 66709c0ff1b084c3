// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/weight_fill.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "fovea/base/error.h"
#include "fovea/runtime/memory_limit.h"

namespace fovea {
namespace {

bool is_matrix(const Parameter& p) {
  return p.name.ends_with("_proj.weight") || p.name.ends_with("embed_tokens.weight") ||
         p.name == "lm_head.weight";
}

void freeze(Parameter& parameter) {
  parameter.trainable = false;
  parameter.value.set_requires_grad(false);
}

}  // namespace

WeightFill::WeightFill(Transformer& model, const MatrixStorage& storage, const Stored& stored)
    : storage_(storage) {
  require<UnsupportedError>(model.device().is_cpu() || (!storage.packed && !storage.as_stored),
                            "weights", "packed weights are for the CPU; got {}: take bf16 or f32",
                            model.device().str());
  const auto item = static_cast<int64_t>(at::elementSize(storage.plain));
  int64_t bytes = 0;
  for (Parameter& p : model.parameters().all()) {
    if (!storage.trainable()) freeze(p);
    if (!is_matrix(p)) continue;
    auto packed = storage.packed;
    if (!packed && stored) packed = stored(p);
    const int64_t rows = p.value.numel() / p.value.size(-1);
    if (packed) packed_shape(*packed, p.value.sizes());  // refuses rows of parts of blocks
    bytes += HugePages::padded(packed ? rows * kernels::row_bytes(*packed, p.value.size(-1))
                                      : p.value.numel() * item);
  }
  if (!model.device().is_cpu()) return;
  require_memory("the model's matrices", static_cast<double>(bytes));
  memory_.emplace(bytes);
}

void WeightFill::set(Parameter& parameter, const at::Tensor& numbers) {
  const at::NoGradGuard no_grad;
  if (!is_matrix(parameter)) {
    parameter.value.copy_(is_packed(numbers) ? unpacked(numbers, at::kFloat) : numbers);
    return;
  }
  // The layers hold the same tensor.
  if (!memory_) {
    parameter.value.set_data(numbers.to(parameter.value.device(), storage_.plain));
  } else if (storage_.packed) {
    at::Tensor to = memory_->allocate(packed_shape(*storage_.packed, numbers.sizes()), at::kByte);
    pack(numbers, *storage_.packed, to);
    parameter.value.set_data(to);
  } else {
    const at::ScalarType dtype = is_packed(numbers) ? at::kByte : storage_.plain;
    parameter.value.set_data(memory_->allocate(numbers.sizes().vec(), dtype).copy_(numbers));
  }
}

void hold_matrices(Transformer& model, const MatrixStorage& storage) {
  WeightFill fill(model, storage);
  for (Parameter& p : model.parameters().all()) {
    freeze(p);
    fill.set(p, p.value.detach());
  }
}

void Transformer::hold_matrices_in(at::ScalarType dtype) { hold_matrices(*this, {.plain = dtype}); }

}  // namespace fovea
