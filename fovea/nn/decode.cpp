// Decoding: the walk over new tokens, with the keys of earlier ones in caches.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>

#include "fovea/attention/backend.h"
#include "fovea/base/error.h"
#include "fovea/kernels/common/isa.h"
#include "fovea/nn/layer_walk_work.h"
#include "fovea/nn/memory_needs.h"
#include "fovea/runtime/memory_limit.h"

namespace fovea {

std::string Transformer::Impl::isa() const {
  if (device.is_cpu()) return std::string(enum_name(chosen_isa()));
  const kernels::Backend* const backend = backend_of(device);
  if (backend == nullptr) return {};
  return std::string(backend->isa<kernels::AttentionForward<BFloat16>>());
}

std::vector<std::vector<StreamSpec>> Transformer::Impl::cached_streams() const {
  std::vector<std::vector<StreamSpec>> streams;
  for (const LayerWeights& layer : layers)
    streams.push_back(cache_streams(spec_in_force(layer.spec, compute), compute.dtype));
  return streams;
}

int64_t Transformer::decode_state_bytes(int64_t batch, int64_t capacity) const {
  int64_t bytes = 0;
  for (const std::vector<StreamSpec>& streams : impl_->cached_streams())
    bytes += cache_bytes(streams, batch, capacity);
  return bytes;
}

DecodeState Transformer::make_decode_state(int64_t batch, int64_t capacity) const {
  DecodeState state;
  const std::vector<std::vector<StreamSpec>> streams = impl_->cached_streams();
  const int64_t bytes = decode_state_bytes(batch, capacity);
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
  for (int64_t layer = 0; layer < std::ssize(state.layers); ++layer)
    state.sorted.emplace_back(layer);
  return state;
}

at::Tensor Transformer::Impl::next_positions(const std::vector<int64_t>& lengths, int64_t t) const {
  return (at::tensor(lengths, at::kLong).unsqueeze(1) + at::arange(t)).to(device);
}

std::optional<std::string> Transformer::why_no_fused_decoder() const {
  return impl_->why_no_fused_decoder();
}

int64_t Transformer::decoder_compilations() const { return impl_->compilations; }

namespace {

void require_decode(const ComputeOptions& compute) {
  require<UnsupportedError>(!is_baseline(compute.focus), "decode",
                            "focus {} is a baseline of scoring and has no decode",
                            enum_name(compute.focus));
}

}  // namespace

PassContext Transformer::Impl::next_pass(const at::Tensor& tokens_bt, DecodeState& state) const {
  PassContext pass;
  pass.tokens_bt = tokens_bt;
  pass.positions = next_positions(state.lengths(), tokens_bt.size(1));
  pass.last_position = state.length() + tokens_bt.size(1) - 1;
  pass.rope = state.rope;
  pass.focus = compute.focus;
  pass.earlier = &state;
  return pass;
}

at::Tensor Transformer::decode(const at::Tensor& tokens_bt, DecodeState& state, bool all) const {
  const at::NoGradGuard no_grad;
  impl_->check({.tokens_bt = tokens_bt});
  require_decode(impl_->compute);
  if (impl_->prepare_fused_decoder(tokens_bt)) {
    at::Tensor states = decode_hidden(tokens_bt, state);
    if (!all) states = states.select(1, tokens_bt.size(1) - 1);
    return logits(states);
  }
  DecodeState* const one = &state;
  state.path = {.name = PathName::fused_decoder,
                .isa = impl_->isa(),
                .reason = {.detail = impl_->fused->note()}};
  const at::Tensor z = impl_->ruled(impl_->decode_fused(tokens_bt, {&one, 1}));
  return all ? z.unsqueeze(1) : z;
}

at::Tensor Transformer::decode_hidden(const at::Tensor& tokens_bt, DecodeState& state) const {
  LayerWalk walk = decode_layers(tokens_bt, state);
  while (!walk.done()) walk.next();
  return walk.hidden();
}

LayerWalk Transformer::decode_layers(const at::Tensor& tokens_bt, DecodeState& state) const {
  const at::NoGradGuard no_grad;
  impl_->check({.tokens_bt = tokens_bt});
  require_decode(impl_->compute);
  const std::string why_not =
      impl_->prepare_fused_decoder(tokens_bt).value_or("hidden states are wanted");
  state.path = {
      .name = PathName::by_layers,
      .isa = std::string(enum_name(chosen_isa())),
      .reason = {.kind = PathReason::Kind::refused, .detail = "no fused decoder: " + why_not}};
  PassContext pass = impl_->next_pass(tokens_bt, state);
  at::Tensor x = impl_->embed(tokens_bt, pass.positions, pass.last_position);
  return LayerWalk(std::make_unique<LayerWalk::Work>(LayerWalk::Work{
      .model = *impl_, .pass = std::move(pass), .stream = {std::move(x), at::Tensor()}}));
}

bool Transformer::reads_together(int64_t shortest, int64_t longest) const {
  if (config().rotates_by_length()) return false;
  if (shortest == longest) return true;
  const auto keeps_all = [](const std::vector<StreamSpec>& layer) {
    return std::ranges::all_of(layer,
                               [](const StreamSpec& s) { return !s.state && s.keep_last == 0; });
  };
  return std::ranges::all_of(impl_->cached_streams(), keeps_all);
}

at::Tensor Transformer::read_together(std::span<const std::span<const int32_t>> texts,
                                      std::span<DecodeState* const> states) const {
  const at::NoGradGuard no_grad;
  require<ShapeError>(!texts.empty() && texts.size() == states.size(), "decode",
                      "expected a state for each text; got {} texts and {} states", texts.size(),
                      states.size());
  std::vector<int64_t> lengths;
  for (const auto& text : texts) lengths.push_back(std::ssize(text));
  const auto [shortest, longest] = std::ranges::minmax(lengths);
  require<UnsupportedError>(
      shortest > 0 && reads_together(shortest, longest), "decode",
      "this model does not read texts of {} to {} tokens in one pass; read them one by one",
      shortest, longest);
  const int64_t count = std::ssize(texts);
  DecodeState all = make_decode_state(count, longest);
  const at::Tensor ids = at::zeros({count, longest}, at::kLong);
  for (int64_t n = 0; n < count; ++n) {
    const DecodeState& state = *states[n];
    require<ShapeError>(
        state.sequences() == 1 && state.length() == 0 && state.capacity() >= lengths[n], "decode",
        "expected an empty state with room for {} tokens; got {} of {}", lengths[n], state.length(),
        state.capacity());
    std::ranges::copy(texts[n], ids.mutable_data_ptr<int64_t>() + n * longest);
  }
  const at::Tensor hidden = decode_hidden(ids.to(impl_->device), all);
  const at::Tensor last = (at::tensor(lengths, at::kLong) - 1).to(impl_->device),
                   rows = at::arange(count, at::kLong).to(impl_->device);
  all.truncate(lengths);
  for (int64_t n = 0; n < count; ++n) {
    DecodeState read = all.select({&n, 1}, states[n]->capacity());
    read.rope = states[n]->rope;
    read.path = all.path;
    *states[n] = std::move(read);
  }
  return logits(hidden.index({rows, last}));
}

at::Tensor Transformer::decode_together(const at::Tensor& tokens_b1,
                                        std::span<DecodeState* const> states) const {
  const at::NoGradGuard no_grad;
  const at::Tensor there_b1 = tokens_b1.to(impl_->device);
  ModelInput input;
  input.tokens_bt = there_b1;
  impl_->check(input);
  int64_t sequences = 0;
  for (const DecodeState* state : states) sequences += state->sequences();
  require<ShapeError>(sequences == tokens_b1.size(0), "decode",
                      "expected one token of each of {} sequences; got {}", sequences,
                      tokens_b1.size(0));
  if (const auto why_not = impl_->prepare_fused_decoder(there_b1))
    fail<UnsupportedError>("decode",
                           "expected texts that the fused decoder takes together; got others: {}; "
                           "decode them one by one",
                           *why_not);
  for (DecodeState* state : states)
    state->path = {.name = PathName::fused_decoder,
                   .isa = impl_->isa(),
                   .reason = {.detail = impl_->fused->note()}};
  return impl_->ruled(impl_->decode_fused(there_b1, states));
}

}  // namespace fovea
