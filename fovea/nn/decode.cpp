// Decoding: the walk over new tokens, with the keys of earlier ones in caches.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <optional>

#include "fovea/base/error.h"
#include "fovea/kernels/cpu/isa.h"
#include "fovea/nn/memory_needs.h"
#include "fovea/nn/transformer_impl.h"
#include "fovea/runtime/memory_limit.h"

namespace fovea {
DecodeState Transformer::make_decode_state(int64_t batch, int64_t capacity) const {
  DecodeState state;
  std::vector<std::vector<StreamSpec>> streams;
  int64_t bytes = 0;
  for (const LayerWeights& layer : impl_->layers) {
    streams.push_back(
        cache_streams(spec_in_force(layer.spec, impl_->compute), impl_->compute.dtype));
    bytes += cache_bytes(streams.back(), batch, capacity);
  }
  if (impl_->device.is_cpu())
    require_memory(fmt::format("a text of {} tokens", capacity),
                   static_cast<double>(bytes) + position_table_bytes(impl_->config, capacity));
  state.rope = impl_->rope_for(capacity);
  // One block for all layers, each of which may be smaller than a page. Bad sizes are the caches'.
  std::optional<HugePages> memory;
  if (impl_->device.is_cpu() && batch > 0 && capacity > 0) memory.emplace(bytes);
  for (const std::vector<StreamSpec>& of_layer : streams)
    state.layers.emplace_back(of_layer, batch, capacity, impl_->device,
                              memory ? &*memory : nullptr);
  return state;
}

at::Tensor Transformer::Impl::next_positions(int64_t first, int64_t b, int64_t t) const {
  return at::arange(first, first + t, at::TensorOptions(at::kLong).device(device))
      .expand({b, t})
      .contiguous();
}

at::Tensor Transformer::decode(const at::Tensor& tokens_bt, DecodeState& state, bool all) const {
  const at::NoGradGuard no_grad;
  ModelInput input;
  input.tokens_bt = tokens_bt;
  impl_->check(input);
  require<UnsupportedError>(
      impl_->compute.focus != FocusMode::random && impl_->compute.focus != FocusMode::window,
      "decode", "focus {} is a baseline of scoring and has no decode",
      enum_name(impl_->compute.focus));
  const std::optional<std::string> why_not = impl_->why_no_fused_decoder(tokens_bt);
  state.path = {.name = why_not ? PathName::by_layers : PathName::fused_decoder,
                .isa = std::string(enum_name(chosen_isa()))};
  if (why_not)
    state.path.reason = {.kind = PathReason::Kind::refused,
                         .detail = "no fused decoder: " + *why_not};
  if (!why_not) {
    const at::Tensor z = impl_->ruled(impl_->decode_fused(tokens_bt, state));
    return all ? z.unsqueeze(1) : z;
  }
  const int64_t b = tokens_bt.size(0), t = tokens_bt.size(1);
  PassContext pass;
  pass.positions = impl_->next_positions(state.length(), b, t);
  pass.rope = state.rope;
  pass.focus = impl_->compute.focus;
  pass.earlier = &state;
  at::Tensor states = impl_->walk(tokens_bt, pass, {});
  if (!all) states = states.select(1, t - 1);
  return logits(states);
}

void DecodeState::truncate(int64_t length) {
  for (AttentionCache& cache : layers) cache.truncate(length);
}

DecodeState DecodeState::fork() const {
  DecodeState copy;
  copy.rope = rope;
  for (const AttentionCache& cache : layers) copy.layers.push_back(cache.fork());
  return copy;
}

int64_t DecodeState::bytes() const {
  int64_t total = 0;
  for (const AttentionCache& cache : layers) total += cache.bytes();
  return total;
}

}  // namespace fovea
