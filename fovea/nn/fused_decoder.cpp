// The fused decoder of a model: which models it is for, and how the layers' parameters and caches
// become arguments of the kernels.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/fused_decoder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "fovea/attention/cache/decode_rule.h"
#include "fovea/attention/cache/token_keys.h"
#include "fovea/attention/kernel_types.h"
#include "fovea/kernels/cpu/decoder.h"
#include "fovea/nn/matrix.h"
#include "fovea/nn/transformer_impl.h"

namespace fovea {
namespace {

using kernels::HeadNorm;
using kernels::RowNorm;

const float* floats(const at::Tensor& x) {
  return x.defined() ? x.const_data_ptr<float>() : nullptr;
}

kernels::Projection projection(const at::Tensor& w, const at::Tensor& bias) {
  if (!w.defined()) return {};
  return {.w = weight_rows(w), .bias = floats(bias), .outputs = w.size(0)};
}

template <class T>
kernels::HeadRows<T> heads_of(const CachedRows& rows) {
  return {static_cast<T*>(rows.data), rows.batch, rows.head, rows.row};
}

RowNorm row_norm(const BlockDescription& block, const NormWeights& w, bool present) {
  if (!present) return {};
  return {block.norm, floats(w.weight_c), floats(w.bias_c)};
}

kernels::TokenTemperature token_temperature(const AttentionSpec& spec,
                                            const TemperatureParameters& parameters) {
  const TemperatureSpec& t = spec.temperature;
  if (t.kind != TemperatureSpec::Kind::learned) return {};
  return {.weight = t.form != TemperatureSpec::Form::global ? floats(parameters.weight_c) : nullptr,
          .bias = floats(parameters.bias),
          .prefix = keeps_prefix_sum(t),
          .bounds = {.low = t.low(spec.head_dim),
                     .high = t.high(spec.head_dim),
                     .sigmoid = t.bound == TemperatureSpec::Bound::sigmoid}};
}

kernels::TokenGroups token_groups(const FocusSpec& spec, const LayerFocus& focus) {
  if (!spec.active()) return {};
  const bool balanced = spec.assignment == FocusSpec::Assignment::sinkhorn;
  return {.weight = floats(focus.weight),
          .mean = floats(focus.mean),
          .centroids = floats(focus.centroids),
          .potentials = balanced ? floats(focus.potentials) : nullptr,
          .scale = floats(focus.scale),
          .temperature = static_cast<float>(spec.temperature),
          .features = focus.weight.size(0),
          .groups = focus.centroids.size(0),
          .top_k = spec.top_k};
}

/// The head sizes and norms of all layers; one compiled model.
template <class T>
class Compiled final : public FusedDecoder {
 public:
  Compiled(FusedDecoderKey key, const ModelConfig& config, const std::vector<LayerWeights>& layers,
           const std::vector<AttentionSpec>& specs, const RopeTable& rope,
           const NormWeights& final_norm, const at::Tensor& head, const at::Tensor& bias_table)
      : FusedDecoder(std::move(key)),
        rope_(rope),
        bias_table_(bias_table),
        specs_(specs),
        bias_(decode_bias(specs.front(), bias_table)),
        ones_d_(at::ones({config.head_dim})) {
    kernels::DecoderModel model{
        .width = config.width,
        .heads = config.heads,
        .kv_heads = config.kv_heads,
        .head_dim = config.head_dim,
        .ffn_width = config.ffn_width,
        .rotary = rope.cos_pf.defined() ? 2 * rope.cos_pf.size(1) : 0,
        .activation = layers.front().block.activation,
        .join = layers.front().block.join,
        .eps = layers.front().block.eps,
        .layers = {},
        .final_norm = row_norm(layers.front().block, final_norm, config.block != BlockLayout::post),
        .head = projection(head, {})};
    for (size_t i = 0; i < layers.size(); ++i) {
      model.layers.push_back(layer_of(layers[i], specs_[i]));
      keys_.push_back(specs_[i].focus.active() ? std::make_unique<TokenKeys>(specs_[i]) : nullptr);
    }
    const int64_t sequences = this->key().sequences;
    sequences_.resize(layers.size(),
                      std::vector<kernels::SequenceStep>(static_cast<size_t>(sequences)));
    steps_.resize(layers.size());
    decoder_ = std::make_unique<kernels::Decoder<T>>(std::move(model), sequences);
  }

  void step(const at::Tensor& x_b1c, DecodeState& state, const at::Tensor& z_bv) override {
    // Values by distance are made from a table that may change.
    if (bias_table_.defined())
      bias_.bias_hn.copy_(decode_bias(specs_.front(), bias_table_).bias_hn);
    const std::vector<int64_t> positions = state.lengths();
    for (size_t i = 0; i < steps_.size(); ++i) {
      place_tokens(i, positions, state.layers[i], state.sorted[i]);
      if (keys_[i]) state.path.plan = keys_[i]->plan();
    }
    decoder_->run({.positions = positions,
                   .layers = steps_,
                   .x = static_cast<const T*>(x_b1c.const_data_ptr()),
                   .logits = z_bv.mutable_data_ptr<float>()});
  }

 private:
  kernels::DecoderLayer layer_of(const LayerWeights& w, const AttentionSpec& spec) const {
    const BlockDescription& block = w.block;
    const auto gain = [&](const at::Tensor& given) {
      return block.head_norm == HeadNorm::rms && !given.defined() ? floats(ones_d_) : floats(given);
    };
    const bool rotated = block.rotated && rope_.cos_pf.defined();
    return {.attention_in = row_norm(block, w.attention_in, block.norms.attention_in),
            .attention_out = row_norm(block, w.attention_out, block.norms.attention_out),
            .ffn_in = row_norm(block, w.ffn_in, block.norms.ffn_in),
            .ffn_out = row_norm(block, w.ffn_out, block.norms.ffn_out),
            .q = projection(w.wq, w.bq),
            .k = projection(w.wk, w.bk),
            .v = projection(w.wv, w.bv),
            .o = projection(w.wo, w.bo),
            .gate = projection(w.gate, w.gate_bias),
            .up = projection(w.up, w.up_bias),
            .down = projection(w.down, w.down_bias),
            .head_norm = block.head_norm,
            .q_gain = gain(w.q_gain),
            .k_gain = gain(w.k_gain),
            .q_length = floats(w.qk_scale),
            .q_length_factor = static_cast<float>(block.length_factor),
            .cos = rotated ? floats(rope_.cos_pf) : nullptr,
            .sin = rotated ? floats(rope_.sin_pf) : nullptr,
            .temperature = token_temperature(spec, w.temperature),
            .rule = decode_rule(spec, bias_, w.stages.sink_logit_h),
            .groups = token_groups(spec.focus, w.focus)};
  }

  /// Makes room for the token of each sequence, and says what it reads.
  void place_tokens(size_t layer, const std::vector<int64_t>& positions, AttentionCache& cache,
                    SortedCopy& sorted) {
    const AttentionSpec& spec = specs_[layer];
    std::vector<kernels::SequenceStep>& sequences = sequences_[layer];
    kernels::LayerStep<T>& step = steps_[layer];
    step.sequences = sequences;
    if (TokenKeys* const keys = keys_[layer].get()) {
      keys->begin(cache, sorted);
      step.keys = heads_of<T>(keys->keys());
      step.values = heads_of<T>(keys->values());
      step.choice = keys->choice();
      for (size_t b = 0; b < positions.size(); ++b)
        sequences[b] = {.first = 0,
                        .key_row = keys->row(static_cast<int64_t>(b)),
                        .seen = {.near = {.begin = 0, .end = positions[b] + 1}, .far = {}}};
    } else {
      const CachedRows rows = cache.extend(stream::kKeys);
      step.keys = heads_of<T>(rows);
      step.values = heads_of<T>(cache.extend(stream::kValues));
      for (size_t b = 0; b < positions.size(); ++b) {
        const KeptRows& kept = rows.sequences[b];
        const KeyRange run{.begin = 0, .end = kept.rows, .shift = kept.first_position};
        sequences[b] = {.first = kept.begin,
                        .key_row = kept.rows - 1,
                        .seen = row_visits(spec.mask, positions[b], {&run, 1}).value()};
      }
    }
    if (!keeps_prefix_sum(spec.temperature)) return;
    const CachedRows sums = cache.extend(stream::kTemperature);
    for (size_t b = 0; b < positions.size(); ++b) {
      const KeptRows& kept = sums.sequences[b];
      sequences[b].temperature_sum = static_cast<double*>(sums.data) +
                                     static_cast<int64_t>(b) * sums.batch +
                                     (kept.begin + kept.rows - 1) * sums.row;
    }
  }

  const RopeTable rope_;
  const at::Tensor bias_table_;
  const std::vector<AttentionSpec> specs_;  // in force
  DecodeBias bias_;
  const at::Tensor ones_d_;                                    // gain of weightless norms
  std::vector<std::unique_ptr<TokenKeys>> keys_;               // of layers with Focus
  std::vector<std::vector<kernels::SequenceStep>> sequences_;  // of each layer
  std::vector<kernels::LayerStep<T>> steps_;
  std::unique_ptr<kernels::Decoder<T>> decoder_;
};

}  // namespace

std::optional<std::string> Transformer::Impl::why_no_fused_decoder() const {
  if (!compute.fused_decoder || compute.attention_path == Path::reference) return "not wanted";
  if (!device.is_cpu()) return "it runs on the CPU";
  if (compute.dtype != at::kFloat && compute.dtype != at::kBFloat16)
    return fmt::format("it does not compute in {}", at::toString(compute.dtype));
  if (config.lora.active()) return "adapters are not merged";
  for (const LayerWeights& w : layers) {
    if (w.block.interleaved) return "rope.layout interleaved";
    for (const at::Tensor* matrix : {&w.wq, &w.wk, &w.wv, &w.wo, &w.gate, &w.up, &w.down, &head})
      if (matrix->defined() && !format_of(*matrix))
        return fmt::format("matrices are held in {}", at::toString(matrix->scalar_type()));
    if (auto why = why_not_decode_rule(spec_in_force(w.spec, compute))) return why;
  }
  return std::nullopt;
}

FusedDecoderKey Transformer::Impl::fused_decoder_key(const DecodeState& state) const {
  FusedDecoderKey key{.memory = {},
                      .matrices = head.scalar_type(),
                      .compute = compute,
                      .sequences = state.sequences()};
  const auto add = [&](const at::Tensor& x) {
    key.memory.push_back(x.defined() ? x.const_data_ptr() : nullptr);
  };
  for (const Parameter& p : registry.all()) add(p.value);
  for (const LayerWeights& w : layers) {
    if (!w.focus.defined()) continue;
    for (const at::Tensor& x : {w.focus.mean, w.focus.scale, w.focus.centroids, w.focus.potentials})
      add(x);
  }
  add(state.rope.cos_pf);
  return key;
}

std::optional<std::string> Transformer::Impl::prepare_fused_decoder(const at::Tensor& tokens_bt,
                                                                    DecodeState& state) const {
  if (tokens_bt.size(1) != 1) return "it is for one token of each sequence";
  if (tokens_bt.size(0) > kernels::kDecoderSequences || tokens_bt.size(0) < 1)
    return fmt::format("it is for 1 to {} sequences", kernels::kDecoderSequences);
  FusedDecoderKey key = fused_decoder_key(state);
  if (state.fused && state.fused->key() == key) return std::nullopt;
  state.fused = nullptr;
  if (std::optional<std::string> why_not = why_no_fused_decoder()) return why_not;
  std::vector<AttentionSpec> specs;
  for (const LayerWeights& w : layers) specs.push_back(spec_in_force(w.spec, compute));
  with_kernel_type(compute.dtype, "fused decoder", [&]<class T>(T) {
    state.fused = std::make_shared<Compiled<T>>(std::move(key), config, layers, specs, state.rope,
                                                final_norm, head, bias_table);
  });
  return std::nullopt;
}

at::Tensor Transformer::Impl::decode_fused(const at::Tensor& tokens_bt, DecodeState& state) const {
  const at::Tensor x = embed(tokens_bt, next_positions(state.lengths(), 1)).contiguous();
  const at::Tensor z = at::empty({tokens_bt.size(0), head.size(0)}, at::kFloat);
  state.fused->step(x, state, z);
  return z;
}

}  // namespace fovea
