// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/weight_fill.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <unordered_map>

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
  struct Place {
    const Parameter* parameter;
    std::vector<int64_t> shape;
    at::ScalarType dtype;
  };
  std::vector<Place> places;
  int64_t bytes = 0;
  for (Parameter& p : model.parameters().all()) {
    if (!storage.trainable()) freeze(p);
    if (!is_matrix(p)) continue;
    auto packed = storage.packed;
    if (!packed && stored) packed = stored(p);
    // packed_shape() refuses rows of parts of blocks.
    Place place{&p, packed ? packed_shape(*packed, p.value.sizes()) : p.value.sizes().vec(),
                packed ? at::kByte : storage.plain};
    bytes += HugePages::padded(c10::multiply_integers(place.shape) *
                               static_cast<int64_t>(at::elementSize(place.dtype)));
    places.push_back(std::move(place));
  }
  if (!model.device().is_cpu()) return;
  require_memory("the model's matrices", static_cast<double>(bytes));
  HugePages memory(bytes);
  for (const Place& place : places)
    places_[place.parameter] = memory.allocate(place.shape, place.dtype);
}

void WeightFill::set(Parameter& parameter, const at::Tensor& numbers) {
  const at::NoGradGuard no_grad;
  if (!is_matrix(parameter)) {
    parameter.value.copy_(is_packed(numbers) ? unpacked(numbers, at::kFloat) : numbers);
    return;
  }
  // The layers hold the same tensor.
  const auto place = places_.find(&parameter);
  if (place == places_.end()) {
    parameter.value.set_data(numbers.to(parameter.value.device(), storage_.plain));
    return;
  }
  if (storage_.packed) {
    pack(numbers, *storage_.packed, place->second);
  } else {
    place->second.copy_(numbers);
  }
  parameter.value.set_data(place->second);
}

void hold_matrices(Transformer& model, const MatrixStorage& storage, const Transformer* stored) {
  const auto in_blocks = [&](const Parameter& p) -> const Parameter* {
    const Parameter* same = stored != nullptr ? stored->parameters().find(p.name) : nullptr;
    if (same == nullptr || !is_packed(same->value)) return nullptr;
    return at::equal(unpacked(same->value, p.value.scalar_type()), p.value) ? same : nullptr;
  };
  std::unordered_map<const Parameter*, const Parameter*> blocks;
  for (const Parameter& p : model.parameters().all())
    if (const Parameter* same = in_blocks(p)) blocks[&p] = same;
  WeightFill fill(model, storage, [&](const Parameter& p) {
    const auto same = blocks.find(&p);
    return same == blocks.end() ? std::nullopt : format_of(same->second->value);
  });
  for (Parameter& p : model.parameters().all()) {
    freeze(p);
    const auto same = blocks.find(&p);
    fill.set(p, same == blocks.end() ? p.value.detach() : same->second->value);
  }
}

void Transformer::hold_matrices_in(at::ScalarType dtype) { hold_matrices(*this, {.plain = dtype}); }

}  // namespace fovea
