// The fused decoder of a model: the layers' parameters and caches for kernels/cpu/decoder.h, and
// the models it is for.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <optional>

#include "fovea/attention/cache/decode_rule.h"
#include "fovea/attention/cache/token_keys.h"
#include "fovea/kernels/cpu/decoder.h"
#include "fovea/kernels/cpu/matvec.h"
#include "fovea/nn/transformer_impl.h"

namespace fovea {
namespace {

using kernels::Activation;
using kernels::BlockJoin;
using kernels::HeadNorm;
using kernels::RowNorm;

HeadNorm head_norm(QkNorm norm, bool rotated) {
  switch (norm) {
    case QkNorm::none:
      return HeadNorm::none;
    case QkNorm::full_rms:
      return HeadNorm::all_rms;
    case QkNorm::head_layer:
      return HeadNorm::layer;
    case QkNorm::l2:
      return HeadNorm::length;
    case QkNorm::weightless:
      return rotated ? HeadNorm::rms : HeadNorm::none;
    case QkNorm::head_rms:
      break;
  }
  return HeadNorm::rms;
}

BlockJoin block_join(BlockLayout block) {
  if (block == BlockLayout::post) return BlockJoin::sum;
  const bool parallel = block == BlockLayout::parallel || block == BlockLayout::parallel_two;
  return parallel ? BlockJoin::parallel : BlockJoin::delta;
}

Activation activation(FeedForward kind) {
  switch (kind) {
    case FeedForward::relu:
    case FeedForward::reglu:
      return Activation::relu;
    case FeedForward::relu_squared:
      return Activation::relu_squared;
    case FeedForward::gelu:
    case FeedForward::geglu:
      return Activation::gelu;
    case FeedForward::gelu_tanh:
    case FeedForward::geglu_tanh:
      return Activation::gelu_tanh;
    case FeedForward::elu:
      return Activation::elu;
    case FeedForward::glu:
      return Activation::sigmoid;
    case FeedForward::silu:
    case FeedForward::swiglu:
      break;
  }
  return Activation::silu;
}

const float* floats(const at::Tensor& x) {
  return x.defined() ? x.const_data_ptr<float>() : nullptr;
}

template <class W>
kernels::Projection<W> projection(const at::Tensor& w, const at::Tensor& bias) {
  if (!w.defined()) return {};
  return {
      .w = static_cast<const W*>(w.const_data_ptr()), .bias = floats(bias), .outputs = w.size(0)};
}

template <class T>
kernels::HeadRows<T> heads_of(const CachedRows& rows) {
  return {static_cast<T*>(rows.data), rows.batch, rows.head, rows.row};
}

RowNorm row_norm(const ModelConfig& c, const NormWeights& w, bool present) {
  if (!present) return {};
  const bool rms = c.norm == NormKind::rms || c.norm == NormKind::rms_weightless;
  return {rms ? RowNorm::Form::rms : RowNorm::Form::layer, floats(w.weight_c), floats(w.bias_c)};
}

/// What the layers of one token share.
struct TokenContext {
  const ModelConfig& config;
  const RopeTable& rope;
  int64_t position = 0;
  NormPlaces norms;
  DecodeBias bias;
  at::Tensor ones_d;  // gain of weightless norms
  const ComputeOptions& compute;
};

kernels::TokenTemperature temperature_of(const TokenContext& token, const LayerWeights& w,
                                         AttentionCache& cache) {
  const TemperatureSpec& t = w.spec.temperature;
  if (t.kind != TemperatureSpec::Kind::learned) return {};
  kernels::TokenTemperature out{.bias = floats(w.temperature.bias),
                                .low = t.low(token.config.head_dim),
                                .high = t.high(token.config.head_dim),
                                .sigmoid = t.bound == TemperatureSpec::Bound::sigmoid};
  if (t.form != TemperatureSpec::Form::global) out.weight = floats(w.temperature.weight_c);
  if (t.form == TemperatureSpec::Form::prefix) {
    const CachedRows sums = cache.extend("temperature");
    out.sums = static_cast<double*>(sums.data) + (sums.rows - 1) * sums.row;
    out.sums_batch = sums.batch;
  }
  return out;
}

/// Queries and keys of a layer before attention reads them.
template <class T, class W>
void put_heads(const TokenContext& token, const LayerWeights& w,
               kernels::DecoderLayer<T, W>& layer) {
  const ModelConfig& c = token.config;
  layer.head_norm = head_norm(c.qk_norm, w.rotated);
  const bool weightless = c.qk_norm == QkNorm::weightless;
  layer.q_gain = floats(weightless ? token.ones_d : w.q_gain);
  layer.k_gain = floats(weightless ? token.ones_d : w.k_gain);
  // The pipeline divides by sqrt(d), so that goes in before.
  if (c.qk_norm == QkNorm::l2)
    layer.q_length =
        *floats(w.qk_scale) * static_cast<float>(std::sqrt(static_cast<double>(c.head_dim)));
  if (!w.rotated || !token.rope.cos_pf.defined()) return;
  layer.cos = floats(token.rope.cos_pf);
  layer.sin = floats(token.rope.sin_pf);
}

/// Where the token goes in a layer's cache, and what it reads there.
struct CachePlace {
  CachedRows keys, values;
  int64_t row = 0, count = 0;
  RowVisits seen;
  kernels::TokenGroups groups;
  std::unique_ptr<TokenKeys> choice;  // with Focus
};

kernels::TokenGroups token_groups(const FocusSpec& spec, const LayerFocus& focus,
                                  kernels::KeyChoice* choice) {
  const bool balanced = spec.assignment == FocusSpec::Assignment::sinkhorn;
  return {.weight = floats(focus.weight),
          .mean = floats(focus.mean),
          .centroids = floats(focus.centroids),
          .potentials = balanced ? floats(focus.potentials) : nullptr,
          .scale = *floats(focus.scale),
          .temperature = static_cast<float>(spec.temperature),
          .features = focus.weight.size(0),
          .groups = focus.centroids.size(0),
          .top_k = spec.top_k,
          .choice = choice};
}

/// Makes room for the token.
CachePlace place_token(const TokenContext& token, const LayerWeights& w, AttentionCache& cache) {
  const AttentionSpec spec = spec_in_force(w.spec, token.compute);
  if (spec.focus.active()) {
    auto choice = std::make_unique<TokenKeys>(spec, cache);
    const int64_t count = token.position + 1;
    CachePlace place{.keys = choice->keys(),
                     .values = choice->values(),
                     .row = choice->row(),
                     .count = count,
                     .seen = {.near = {.begin = 0, .end = count}, .far = {}},
                     .groups = token_groups(spec.focus, w.focus, choice.get()),
                     .choice = nullptr};
    place.choice = std::move(choice);
    return place;
  }
  const CachedRows keys = cache.extend("keys"), values = cache.extend("values");
  const KeyRange run{.begin = 0, .end = keys.rows, .shift = keys.first_position};
  return {.keys = keys,
          .values = values,
          .row = keys.rows - 1,
          .count = keys.rows,
          .seen = row_visits(spec.mask, token.position, {&run, 1}).value(),
          .groups = {},
          .choice = nullptr};
}

template <class T, class W>
kernels::DecoderLayer<T, W> decoder_layer(const TokenContext& token, const LayerWeights& w,
                                          AttentionCache& cache, const CachePlace& place) {
  const ModelConfig& c = token.config;
  kernels::DecoderLayer<T, W> layer{
      .attention_in = row_norm(c, w.attention_in, token.norms.attention_in),
      .attention_out = row_norm(c, w.attention_out, token.norms.attention_out),
      .ffn_in = row_norm(c, w.ffn_in, token.norms.ffn_in),
      .ffn_out = row_norm(c, w.ffn_out, token.norms.ffn_out),
      .q = projection<W>(w.wq, w.bq),
      .k = projection<W>(w.wk, w.bk),
      .v = projection<W>(w.wv, w.bv),
      .o = projection<W>(w.wo, w.bo),
      .gate = projection<W>(w.gate, w.gate_bias),
      .up = projection<W>(w.up, w.up_bias),
      .down = projection<W>(w.down, w.down_bias),
      .temperature = temperature_of(token, w, cache),
      .rule = decode_rule(spec_in_force(w.spec, token.compute), token.bias, w.stages.sink_logit_h),
      .keys = heads_of<T>(place.keys),
      .values = heads_of<T>(place.values),
      .key_row = place.row,
      .key_count = place.count,
      .seen = place.seen,
      .groups = place.groups};
  put_heads(token, w, layer);
  return layer;
}

}  // namespace

std::optional<std::string> Transformer::Impl::why_no_fused_decoder(
    const at::Tensor& tokens_bt) const {
  if (!compute.fused_decoder || compute.attention_path == Path::reference) return "not wanted";
  if (tokens_bt.size(1) != 1) return "it is for one token of each sequence";
  if (tokens_bt.size(0) > kernels::kMatVecRows || tokens_bt.size(0) < 1)
    return fmt::format("it is for 1 to {} sequences", kernels::kMatVecRows);
  if (!device.is_cpu()) return "it runs on the CPU";
  if (compute.dtype != at::kFloat && compute.dtype != at::kBFloat16)
    return fmt::format("it does not compute in {}", at::toString(compute.dtype));
  if (config.lora.active()) return "adapters are not merged";
  if (config.positions == Positions::rope && config.rope.layout == RopeLayout::interleaved)
    return "rope.layout interleaved";
  const at::ScalarType held = head.scalar_type();
  const auto usable = [held](const at::Tensor& w) {
    return !w.defined() || (w.scalar_type() == held && w.is_contiguous());
  };
  if (held != at::kFloat && held != at::kBFloat16)
    return fmt::format("matrices are held in {}", at::toString(held));
  for (const LayerWeights& w : layers) {
    for (const at::Tensor* matrix : {&w.wq, &w.wk, &w.wv, &w.wo, &w.gate, &w.up, &w.down, &head})
      if (!usable(*matrix)) return "matrices are held in several forms";
    const std::string why = beyond_decode_rule(spec_in_force(w.spec, compute));
    if (!why.empty()) return why;
  }
  return std::nullopt;
}

template <class T, class W>
void Transformer::Impl::run_fused_decoder(const at::Tensor& x_btc, DecodeState& state,
                                          const at::Tensor& logits_bv) const {
  const ModelConfig& c = config;
  const TokenContext token{
      .config = c,
      .rope = state.rope,
      .position = state.length(),
      .norms = norm_places(c.block),
      .bias = decode_bias(layers.front().spec, bias_table),
      .ones_d = c.qk_norm == QkNorm::weightless ? at::ones({c.head_dim}) : at::Tensor(),
      .compute = compute};
  std::vector<kernels::DecoderLayer<T, W>> all;
  std::vector<CachePlace> places;
  all.reserve(layers.size());
  places.reserve(layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    AttentionCache& cache = state.layers[i];
    places.push_back(place_token(token, layers[i], cache));
    all.push_back(decoder_layer<T, W>(token, layers[i], cache, places.back()));
    if (places.back().choice) state.path.plan = places.back().choice->plan();
  }
  kernels::run(kernels::DecoderToken<T, W>{
      .rows = x_btc.size(0),
      .width = c.width,
      .heads = c.heads,
      .kv_heads = c.kv_heads,
      .head_dim = c.head_dim,
      .ffn_width = c.ffn_width,
      .position = token.position,
      .rotary = token.rope.cos_pf.defined() ? 2 * token.rope.cos_pf.size(1) : 0,
      .activation = activation(c.feed_forward),
      .join = block_join(c.block),
      .eps = static_cast<float>(c.norm_eps),
      .layers = all,
      .final_norm = row_norm(c, final_norm, c.block != BlockLayout::post),
      .head = projection<W>(head, {}),
      .x = static_cast<const T*>(x_btc.const_data_ptr()),
      .logits = logits_bv.mutable_data_ptr<float>()});
}

at::Tensor Transformer::Impl::decode_fused(const at::Tensor& tokens_bt, DecodeState& state) const {
  const int64_t b = tokens_bt.size(0);
  const at::Tensor x = embed(tokens_bt, next_positions(state.length(), b, 1)).contiguous();
  const at::Tensor z = at::empty({b, head.size(0)}, at::kFloat);
  const bool narrow = compute.dtype == at::kBFloat16,
             narrow_weights = head.scalar_type() == at::kBFloat16;
  if (narrow) {
    narrow_weights ? run_fused_decoder<BFloat16, BFloat16>(x, state, z)
                   : run_fused_decoder<BFloat16, float>(x, state, z);
  } else {
    narrow_weights ? run_fused_decoder<float, BFloat16>(x, state, z)
                   : run_fused_decoder<float, float>(x, state, z);
  }
  return z;
}

}  // namespace fovea
