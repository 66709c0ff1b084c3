// The fused decoder of a model: which models it is for, and how the layers' parameters and caches
// become arguments of the kernels.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/fused_decoder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "fovea/attention/cache/decode_rule.h"
#include "fovea/attention/cache/token_keys.h"
#include "fovea/attention/kernel_types.h"
#include "fovea/kernels/cpu/decode/decoder.h"
#include "fovea/kernels/cpu/pointwise/attention.h"
#include "fovea/nn/matrix.h"
#include "fovea/nn/transformer_impl.h"
#include "fovea/nn/walk_attention.h"

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
kernels::HeadRows<T> heads_of(const CachedRows& rows, size_t sequence) {
  T* const data = static_cast<T*>(rows.data) + static_cast<int64_t>(sequence) * rows.batch;
  return {data, rows.batch, rows.head, rows.row};
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

/// The keys of one layer with hard Focus: those of each state, seen by the kernels as one.
struct FocusKeys {
  std::vector<std::unique_ptr<TokenKeys>> states;
  std::vector<int64_t> sequences;  // of each state
  std::vector<std::vector<int32_t>> seen;

  std::span<const std::vector<int32_t>> choose(std::span<const uint64_t> members) {
    seen.clear();
    size_t first = 0;
    for (size_t n = 0; n < sequences.size(); ++n) {
      const auto count = static_cast<size_t>(sequences[n]);
      for (const std::vector<int32_t>& rows : states[n]->choose(members.subspan(first, count)))
        seen.push_back(rows);
      first += count;
    }
    return seen;
  }
  void keep() {
    for (size_t n = 0; n < sequences.size(); ++n) states[n]->keep();
  }
  kernels::KeyChoice choice() {
    return {.object = this,
            .choose =
                [](void* keys, std::span<const uint64_t> members) {
                  return static_cast<FocusKeys*>(keys)->choose(members);
                },
            .keep = [](void* keys) { static_cast<FocusKeys*>(keys)->keep(); }};
  }
};

/// Adapters are merged into float32 matrices: rounded to the format of the base, small changes
/// would be lost.
class MergedMatrices {
 public:
  kernels::Projection projection(const LayerWeights& w, LoraSite site, const at::Tensor& matrix,
                                 const at::Tensor& bias, int64_t first_of_qkv = -1) {
    const LoraAdapter& own = w.lora[static_cast<size_t>(site)];
    const LoraAdapter& qkv = w.lora[static_cast<size_t>(LoraSite::qkv_proj)];
    const bool in_qkv = first_of_qkv >= 0 && qkv.defined();
    if (!own.defined() && !in_qkv) return fovea::projection(matrix, bias);
    const at::Tensor whole = is_packed(matrix) ? unpacked(matrix, at::kFloat)
                                               : matrix.detach().to(at::kFloat, false, true);
    const auto add = [&](const LoraAdapter& adapter, const at::Tensor& b_or) {
      whole.add_(at::matmul(b_or.detach().to(at::kFloat), adapter.a_ri.detach().to(at::kFloat)),
                 adapter.scale);
    };
    if (own.defined()) add(own, own.b_or);
    if (in_qkv) add(qkv, qkv.b_or.narrow(0, first_of_qkv, whole.size(0)));
    held_.push_back(whole);
    return fovea::projection(whole, bias);
  }

 private:
  std::vector<at::Tensor> held_;
};

/// The head sizes and norms of all layers; one compiled model.
template <class T>
class Compiled final : public FusedDecoder {
 public:
  Compiled(FusedDecoderKey key, const ModelConfig& config, const std::vector<LayerWeights>& layers,
           const std::vector<AttentionSpec>& specs, int64_t rotary, const NormWeights& final_norm,
           const at::Tensor& head, const at::Tensor& bias_table, at::ScalarType dtype)
      : FusedDecoder(std::move(key)),
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
        .rotary = rotary,
        .activation = layers.front().block.activation,
        .join = layers.front().block.join,
        .eps = layers.front().block.eps,
        .layers = {},
        .final_norm = row_norm(layers.front().block, final_norm, config.block != BlockLayout::post),
        .head = projection(head, {}),
        .activations = this->key().compute.activations};
    walks_.resize(layers.size());
    std::string why;
    for (size_t i = 0; i < layers.size(); ++i) {
      if (const auto why_not = why_not_decode_rule(specs_[i])) {
        std::optional<TokenAttention> token;
        if (!why_not_token_attention(specs_[i]))
          token.emplace(specs_[i], decode_rule(specs_[i], bias_, layers[i].stages.sink_logit_h));
        walks_[i] = std::make_unique<WalkAttention<T>>(static_cast<int64_t>(i), config,
                                                       specs_[i].focus, dtype, std::move(token));
        if (why.empty() && !walks_[i]->by_kernels()) why = *why_not;
      }
      model.layers.push_back(layer_of(layers[i], specs_[i], rotary, walks_[i].get()));
    }
    if (!why.empty())
      note_ =
          fmt::format("attention of {} of {} layers by single operations: {}",
                      std::ranges::count_if(
                          walks_, [](const auto& o) { return o != nullptr && !o->by_kernels(); }),
                      layers.size(), why);
    keys_.resize(layers.size());
    sequences_.resize(layers.size());
    caches_.resize(layers.size());
    steps_.resize(layers.size());
    for (size_t i = 0; i < layers.size(); ++i) {
      if (walks_[i] != nullptr) {
        steps_[i].attention = walks_[i]->hook();
      } else if (specs_[i].focus.active()) {
        steps_[i].choice = keys_[i].choice();
      }
    }
    decoder_ = std::make_unique<kernels::Decoder<T>>(std::move(model));
  }

  void step(const Transformer::Impl& model, const at::Tensor& x_b1c,
            std::span<DecodeState* const> states, const at::Tensor& z_bv) override {
    // Values by distance are made from a table that may change.
    if (bias_table_.defined())
      bias_.bias_hn.copy_(decode_bias(specs_.front(), bias_table_).bias_hn);
    tokens_.clear();
    for (const DecodeState* state : states)
      for (const int64_t length : state->lengths())
        tokens_.push_back({.position = length,
                           .cos = floats(state->rope.cos_pf),
                           .sin = floats(state->rope.sin_pf)});
    set_sequences(tokens_.size());
    const std::vector<PassContext> passes = passes_of(model, states);
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (walks_[i] != nullptr) walks_[i]->begin(model, passes);
      keys_[i].sequences.clear();
      size_t first = 0;
      for (size_t n = 0; n < states.size(); ++n) {
        if (walks_[i] == nullptr) place_tokens(i, n, first, *states[n]);
        if (walks_[i] == nullptr || walks_[i]->by_kernels())
          place_temperature_sums(i, first, states[n]->layers[i]);
        first += static_cast<size_t>(states[n]->sequences());
      }
    }
    decoder_->run({.tokens = tokens_,
                   .layers = steps_,
                   .x = static_cast<const T*>(x_b1c.const_data_ptr()),
                   .logits = z_bv.mutable_data_ptr<float>()});
  }

 private:
  void set_sequences(size_t count) {
    if (count == sequences_.front().size()) return;
    for (size_t i = 0; i < steps_.size(); ++i) {
      sequences_[i].assign(count, {});
      caches_[i].assign(count, {});
      steps_[i].sequences = sequences_[i];
      steps_[i].caches = caches_[i];
      if (walks_[i] == nullptr) continue;
      walks_[i]->set_sequences(static_cast<int64_t>(count));
      for (size_t b = 0; b < count; ++b) caches_[i][b] = walks_[i]->rows(b);
    }
  }

  // What attention by the walk reads, one a state; none where no layer has one.
  std::vector<PassContext> passes_of(const Transformer::Impl& model,
                                     std::span<DecodeState* const> states) const {
    std::vector<PassContext> passes;
    if (std::ranges::all_of(walks_, [](const auto& walk) { return walk == nullptr; }))
      return passes;
    for (DecodeState* const state : states) {
      PassContext& pass = passes.emplace_back();
      pass.positions = model.next_positions(state->lengths(), 1);
      pass.rope = state->rope;
      pass.focus = model.compute.focus;
      pass.earlier = state;
    }
    return passes;
  }

  /// `walk`: who attends instead of the decoder's kernels, or null.
  kernels::DecoderLayer layer_of(const LayerWeights& w, const AttentionSpec& spec, int64_t rotary,
                                 const WalkAttention<T>* walk) {
    const BlockDescription& block = w.block;
    const auto gain = [&](const at::Tensor& given) {
      return block.head_norm == HeadNorm::rms && !given.defined() ? floats(ones_d_) : floats(given);
    };
    const int64_t q = w.wq.size(0), k = w.wk.size(0);
    kernels::DecoderLayer layer{
        .attention_in = row_norm(block, w.attention_in, block.norms.attention_in),
        .attention_out = row_norm(block, w.attention_out, block.norms.attention_out),
        .ffn_in = row_norm(block, w.ffn_in, block.norms.ffn_in),
        .ffn_out = row_norm(block, w.ffn_out, block.norms.ffn_out),
        .q = matrices_.projection(w, LoraSite::q_proj, w.wq, w.bq, 0),
        .k = matrices_.projection(w, LoraSite::k_proj, w.wk, w.bk, q),
        .v = matrices_.projection(w, LoraSite::v_proj, w.wv, w.bv, q + k),
        .o = matrices_.projection(w, LoraSite::o_proj, w.wo, w.bo),
        .gate = matrices_.projection(w, LoraSite::gate_proj, w.gate, w.gate_bias),
        .up = matrices_.projection(w, LoraSite::up_proj, w.up, w.up_bias),
        .down = matrices_.projection(w, LoraSite::down_proj, w.down, w.down_bias),
        .head_norm = block.head_norm,
        .q_gain = gain(w.q_gain),
        .k_gain = gain(w.k_gain),
        .q_length = floats(w.qk_scale),
        .q_length_factor = static_cast<float>(block.length_factor),
        .rotated = block.rotated && rotary > 0,
        .start_place =
            spec.streaming.active() ? spec.streaming.start + spec.streaming.recent - 1 : -1,
        .caller_attends = walk != nullptr};
    if (walk != nullptr && !walk->by_kernels()) return layer;
    layer.temperature = token_temperature(spec, w.temperature);
    layer.groups = token_groups(spec.focus, w.focus);
    if (walk == nullptr) layer.rule = decode_rule(spec, bias_, w.stages.sink_logit_h);
    return layer;
  }

  /// Makes room for the tokens of state n, whose first sequence is `first`, and says what they
  /// read.
  void place_tokens(size_t layer, size_t n, size_t first, DecodeState& state) {
    const AttentionSpec& spec = specs_[layer];
    AttentionCache& cache = state.layers[layer];
    const auto count = static_cast<size_t>(cache.batch());
    const auto sequences = std::span(sequences_[layer]).subspan(first, count);
    const auto tokens = std::span(tokens_).subspan(first, count);
    if (spec.focus.active()) {
      TokenKeys& keys = keys_of(layer, n);
      keys.begin(cache, state.sorted[layer]);
      keys_[layer].sequences.push_back(cache.batch());
      state.path.plan = keys.plan();
      place_caches(layer, first, count, keys.keys(), keys.values());
      for (size_t b = 0; b < count; ++b)
        sequences[b] = {.first = 0,
                        .key_row = keys.row(static_cast<int64_t>(b)),
                        .seen = {.near = {.begin = 0, .end = tokens[b].position + 1}, .far = {}}};
    } else {
      const CachedRows rows = cache.extend(stream::kKeys);
      place_caches(layer, first, count, rows, cache.extend(stream::kValues));
      for (size_t b = 0; b < count; ++b) {
        const KeptRows& kept = rows.sequences[b];
        const KeyRange run{.begin = 0, .end = kept.rows, .shift = kept.first_position};
        sequences[b] = {.first = kept.begin,
                        .key_row = kept.rows - 1,
                        .seen = row_visits(spec.mask, tokens[b].position, {&run, 1}).value()};
      }
    }
  }

  void place_temperature_sums(size_t layer, size_t first, AttentionCache& cache) {
    if (!keeps_prefix_sum(specs_[layer].temperature)) return;
    const CachedRows sums = cache.extend(stream::kTemperature);
    for (size_t b = 0; b < sums.sequences.size(); ++b) {
      const KeptRows& kept = sums.sequences[b];
      sequences_[layer][first + b].temperature_sum = static_cast<double*>(sums.data) +
                                                     static_cast<int64_t>(b) * sums.batch +
                                                     (kept.begin + kept.rows - 1) * sums.row;
    }
  }

  void place_caches(size_t layer, size_t first, size_t count, const CachedRows& keys,
                    const CachedRows& values) {
    for (size_t b = 0; b < count; ++b)
      caches_[layer][first + b] = {.keys = heads_of<T>(keys, b), .values = heads_of<T>(values, b)};
  }

  TokenKeys& keys_of(size_t layer, size_t n) {
    std::vector<std::unique_ptr<TokenKeys>>& all = keys_[layer].states;
    while (all.size() <= n) all.push_back(std::make_unique<TokenKeys>(specs_[layer]));
    return *all[n];
  }

  MergedMatrices matrices_;
  const at::Tensor bias_table_;
  const std::vector<AttentionSpec> specs_;  // in force
  DecodeBias bias_;
  const at::Tensor ones_d_;  // gain of weightless norms
  std::vector<kernels::TokenPosition> tokens_;
  std::vector<std::unique_ptr<WalkAttention<T>>> walks_;  // null: the kernels' attention
  // Of each layer, the latter two of each sequence.
  std::vector<FocusKeys> keys_;
  std::vector<std::vector<kernels::SequenceStep>> sequences_;
  std::vector<std::vector<kernels::SequenceCache<T>>> caches_;
  std::vector<kernels::DecoderLayerStep<T>> steps_;
  std::unique_ptr<kernels::Decoder<T>> decoder_;
};

}  // namespace

std::optional<std::string> Transformer::Impl::why_no_fused_decoder() const {
  if (!compute.fused_decoder || compute.attention_path == Path::reference) return "not wanted";
  if (!device.is_cpu()) return "it runs on the CPU";
  if (compute.dtype != at::kFloat && compute.dtype != at::kBFloat16)
    return fmt::format("it does not compute in {}", at::toString(compute.dtype));
  for (const LayerWeights& w : layers) {
    if (w.block.interleaved) return "rope.layout interleaved";
    for (const at::Tensor* matrix : {&w.wq, &w.wk, &w.wv, &w.wo, &w.gate, &w.up, &w.down, &head})
      if (matrix->defined() && !format_of(*matrix))
        return fmt::format("matrices are held in {}", at::toString(matrix->scalar_type()));
    const AttentionSpec spec = spec_in_force(w.spec, compute);
    if (why_not_decode_rule(spec))
      if (auto why = why_not_walk_attention(config, w, spec)) return why;
  }
  return std::nullopt;
}

FusedDecoderKey Transformer::Impl::fused_decoder_key() const {
  FusedDecoderKey key{
      .memory = {}, .versions = {}, .matrices = head.scalar_type(), .compute = compute};
  const auto add = [&](const at::Tensor& x) {
    key.memory.push_back(x.defined() ? x.const_data_ptr() : nullptr);
  };
  for (const Parameter& p : registry.all()) {
    add(p.value);
    if (config.lora.active()) key.versions.push_back(static_cast<int64_t>(p.value._version()));
  }
  for (const LayerWeights& w : layers) {
    if (!w.focus.defined()) continue;
    for (const at::Tensor& x : {w.focus.mean, w.focus.scale, w.focus.centroids, w.focus.potentials})
      add(x);
  }
  return key;
}

std::optional<std::string> Transformer::Impl::prepare_fused_decoder(
    const at::Tensor& tokens_bt) const {
  if (tokens_bt.size(1) != 1 || tokens_bt.size(0) < 1)
    return "it is for one token of each sequence";
  FusedDecoderKey key = fused_decoder_key();
  if (fused && fused->key() == key) return std::nullopt;
  fused = nullptr;
  if (std::optional<std::string> why_not = why_no_fused_decoder()) return why_not;
  std::vector<AttentionSpec> specs;
  for (const LayerWeights& w : layers) specs.push_back(spec_in_force(w.spec, compute));
  const int64_t rotary = rope.cos_pf.defined() ? 2 * rope.cos_pf.size(1) : 0;
  with_kernel_type(compute.dtype, "fused decoder", [&]<class T>(T) {
    fused = std::make_unique<Compiled<T>>(std::move(key), config, layers, specs, rotary, final_norm,
                                          head, bias_table, compute.dtype);
  });
  ++compilations;
  return std::nullopt;
}

at::Tensor Transformer::Impl::decode_fused(const at::Tensor& tokens_bt,
                                           std::span<DecodeState* const> states) const {
  std::vector<int64_t> lengths;
  for (const DecodeState* state : states)
    for (const int64_t length : state->lengths()) lengths.push_back(length);
  const at::Tensor x = embed(tokens_bt, next_positions(lengths, 1)).contiguous();
  const at::Tensor z = at::empty({tokens_bt.size(0), head.size(0)}, at::kFloat);
  fused->step(*this, x, states, z);
  return z;
}

}  // namespace fovea
