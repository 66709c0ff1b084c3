// Decoding: the forward pass over new tokens with cached keys, values and temperature sums.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <optional>

#include "fovea/attention/mechanisms/sinkhorn.h"
#include "fovea/base/error.h"
#include "fovea/kernels/cpu/isa.h"
#include "fovea/nn/memory_needs.h"
#include "fovea/nn/transformer_impl.h"
#include "fovea/runtime/memory_limit.h"

namespace fovea {
namespace {

// Groups of the next tokens: fixed when a token is processed (11.3).
LayerGroups cached_groups(const LayerWeights& w, const FocusSpec& spec, const at::Tensor& y,
                          AttentionCache& cache) {
  const FocusParameters parameters = w.focus.parameters();
  LayerGroups out;
  out.features_btg = focus_features(parameters, y);
  out.scores_btk = focus_scores(spec, parameters, out.features_btg);
  out.groups = group_tokens(spec, out.scores_btk,
                            cached_potentials(spec, out.scores_btk, w.focus.potentials, cache));
  return out;
}

}  // namespace

DecodeState Transformer::make_decode_state(int64_t batch, int64_t capacity) const {
  DecodeState state;
  std::vector<std::vector<StreamSpec>> streams;
  int64_t bytes = 0;
  for (const LayerWeights& layer : impl_->layers) {
    streams.push_back(
        cache_streams(spec_in_mode(layer.spec, impl_->compute.focus, impl_->compute.focus_change),
                      impl_->compute.dtype));
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
  const std::string beyond = impl_->beyond_one_pass(tokens_bt);
  state.path = {.name = beyond.empty() ? "one pass" : "by layers",
                .isa = std::string(enum_name(chosen_isa())),
                .plan = "",
                .reason = beyond.empty() ? "" : "no pass over all layers: " + beyond};
  if (beyond.empty()) {
    const at::Tensor z = impl_->ruled(impl_->decode_in_one_pass(tokens_bt, state));
    return all ? z.unsqueeze(1) : z;
  }
  const ModelConfig& c = impl_->config;
  const int64_t b = tokens_bt.size(0), t = tokens_bt.size(1), first = state.length();
  PassContext pass;
  pass.positions = impl_->next_positions(first, b, t);
  pass.rope = state.rope;
  Transformer::Impl::Stream stream{impl_->embed(tokens_bt, pass.positions), at::Tensor()};
  for (int64_t i = 0; i < c.layers; ++i) {
    const LayerWeights& w = impl_->layers[static_cast<size_t>(i)];
    AttentionCache& cache = state.layers[static_cast<size_t>(i)];
    const auto [x, y] = impl_->attention_input(w, stream);
    at::Tensor tau;
    if (w.spec.temperature.kind == TemperatureSpec::Kind::learned) {
      tau = cached_temperature(w.spec.temperature, c.head_dim, w.temperature, y, cache);
    }
    const Heads heads = impl_->project(w, y, pass);
    const AttentionSpec spec =
        spec_in_mode(w.spec, impl_->compute.focus, impl_->compute.focus_change);
    AttentionTensors tensors = impl_->tensors_of(w, tau);
    if (w.routing.defined()) impl_->route(w, heads, tensors);
    if (spec.focus.active())
      put_groups(spec, w.focus, cached_groups(w, spec.focus, y, cache), tensors);
    const at::Tensor out = cached_attention(spec, cache, heads.q_bhtd, heads.k_bgtd, heads.v_bgtd,
                                            tensors, impl_->compute.attention_path)
                               .out_bhte;
    stream = impl_->leave_layer(i, x, y, out, pass);
  }
  at::Tensor states = impl_->finish(stream);
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
