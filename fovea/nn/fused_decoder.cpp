// The fused decoder of a model: which models it is for, and how the layers' parameters and caches
// become arguments of the kernels.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/fused_decoder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>

#include "fovea/attention/backend.h"
#include "fovea/nn/layer_attention.h"
#include "fovea/nn/matrix.h"
#include "fovea/nn/transformer_impl.h"
#include "fovea/runtime/free_cores.h"

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
          .top_k = spec.top_k,
          .window = spec.keeps_every_pair() ? std::numeric_limits<int64_t>::max() : spec.window,
          .sinks = spec.sinks};
}

/// Adapters are merged into float32 matrices: rounded to the format of the base, small changes
/// would be lost.
class MergedMatrices {
 public:
  /// Without `merges` the bases stand for them: for questions.
  explicit MergedMatrices(bool merges) : merges_(merges) {}

  kernels::Projection projection(const LayerWeights& w, LoraSite site, const at::Tensor& matrix,
                                 const at::Tensor& bias, int64_t first_of_qkv = -1) {
    const LoraAdapter& own = w.lora[static_cast<size_t>(site)];
    const LoraAdapter& qkv = w.lora[static_cast<size_t>(LoraSite::qkv_proj)];
    const bool in_qkv = first_of_qkv >= 0 && qkv.defined();
    if (!merges_ || (!own.defined() && !in_qkv)) return fovea::projection(matrix, bias);
    const at::Tensor whole = is_packed(matrix) ? unpacked(matrix, at::kFloat)
                                               : matrix.detach().to(at::kFloat, false, true);
    const auto add = [&](const LoraAdapter& adapter, const at::Tensor& b_or) {
      whole.add_(at::matmul(b_or.detach().to(at::kFloat), adapter.a_ri.detach().to(at::kFloat)),
                 adapter.scale);
      held_.insert(held_.end(), {adapter.a_ri, adapter.b_or});  // their memory is in the key
    };
    if (own.defined()) add(own, own.b_or);
    if (in_qkv) add(qkv, qkv.b_or.narrow(0, first_of_qkv, whole.size(0)));
    held_.push_back(whole);
    return fovea::projection(whole, bias);
  }

 private:
  const bool merges_;
  std::vector<at::Tensor> held_;
};

/// A model as the kernels' description, and what that points into.
class Description {
 public:
  Description(const Transformer::Impl& of, bool merges)
      : matrices_(merges),
        bias_table_(of.bias_table),
        bias_spec_(of.layers.front().spec),
        bias_(decode_bias(bias_spec_, bias_table_, of.device)),
        ones_d_(at::ones({of.config.head_dim}, at::TensorOptions(of.device))) {
    const ModelConfig& config = of.config;
    const BlockDescription& block = of.layers.front().block;
    model_ = {.width = config.width,
              .heads = config.heads,
              .kv_heads = config.kv_heads,
              .head_dim = config.head_dim,
              .ffn_width = config.ffn_width,
              .rotary = of.rope.cos_pf.defined() ? 2 * of.rope.cos_pf.size(1) : 0,
              .activation = block.activation,
              .join = block.join,
              .eps = block.eps,
              .layers = {},
              .final_norm = row_norm(block, of.final_norm, config.block != BlockLayout::post),
              .head = projection(of.head, {}),
              .activations = of.compute.activations};
    for (const LayerWeights& w : of.layers) {
      const AttentionSpec spec = in_mask_terms(spec_in_force(w.spec, of.compute));
      const TokenUse use = token_form(spec);
      kernels::DecoderLayer layer = layer_of(w, model_.rotary > 0);
      if (use.form != TokenForm::operations) add_attention(w, spec, layer);
      layer.caller_attends = use.form != TokenForm::decoder;
      attention_.push_back({spec, use});
      model_.layers.push_back(layer);
    }
  }

  struct Attention {
    AttentionSpec spec;
    TokenUse use;
  };
  const kernels::DecoderModel& model() const { return model_; }
  const std::vector<Attention>& attention() const { return attention_; }
  /// Values by distance are made from a table that may change.
  void refresh() {
    if (bias_table_.defined())
      bias_.bias_hn.copy_(decode_bias(bias_spec_, bias_table_, bias_table_.device()).bias_hn);
  }

 private:
  /// A layer but its attention.
  kernels::DecoderLayer layer_of(const LayerWeights& w, bool has_table) {
    const BlockDescription& block = w.block;
    const auto gain = [&](const at::Tensor& given) {
      return block.head_norm == HeadNorm::rms && !given.defined() ? floats(ones_d_) : floats(given);
    };
    const int64_t q = w.wq.size(0), k = w.wk.size(0);
    // Norms with a factor are copies; changed weights make another key.
    const auto in_front = [&](const NormWeights& given, bool present) {
      if (!present) return RowNorm();
      const at::Tensor row = at::empty({0, model_.width}, ones_d_.options());
      return row_norm(block, norms_.emplace_back(scaled(given, block.norm_factor, row)), true);
    };
    return {.attention_in = in_front(w.attention_in, block.norms.attention_in),
            .attention_out = row_norm(block, w.attention_out, block.norms.attention_out),
            .ffn_in = in_front(w.ffn_in, block.norms.ffn_in),
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
            .rotated = block.rotated && has_table};
  }

  void add_attention(const LayerWeights& w, const AttentionSpec& spec,
                     kernels::DecoderLayer& layer) const {
    if (spec.streaming.active())
      layer.start_place = spec.streaming.start + spec.streaming.recent - 1;
    layer.temperature = token_temperature(spec, w.temperature);
    layer.groups = token_groups(spec.focus, w.focus);
    layer.rule = decode_rule(spec, bias_, w.stages.sink_logit_h);
  }

  MergedMatrices matrices_;
  std::vector<NormWeights> norms_;  // those of the layers' inputs
  const at::Tensor bias_table_;
  const AttentionSpec bias_spec_;
  DecodeBias bias_;
  const at::Tensor ones_d_;  // gain of weightless norms
  kernels::DecoderModel model_;
  std::vector<Attention> attention_;  // of each layer
};

/// The head sizes and norms of all layers; one compiled model.
template <class T>
class Compiled final : public FusedDecoder {
 public:
  Compiled(FusedDecoderKey key, const Transformer::Impl& of)
      : FusedDecoder(std::move(key)), description_(of, /*merges=*/true) {
    for (const Description::Attention& layer : description_.attention())
      attention_.push_back(
          std::make_unique<LayerAttention<T>>(std::ssize(attention_), layer.spec, layer.use,
                                              description_.model().layers[attention_.size()].rule));
    note_ = operations_note();
    decoder_ = backend_of(of.device)->make_decoder<T>(description_.model());
  }

  void step(const Transformer::Impl& model, const at::Tensor& x_b1c,
            std::span<DecodeState* const> states, const at::Tensor& z_bv) override {
    description_.refresh();
    tokens_.clear();
    for (const DecodeState* state : states)
      for (const int64_t length : state->lengths())
        tokens_.push_back({.position = length,
                           .cos = floats(state->rope.cos_pf),
                           .sin = floats(state->rope.sin_pf)});
    const std::vector<PassContext> passes = passes_of(model, states);
    const DecodedTexts texts{.model = model, .states = states, .tokens = tokens_, .passes = passes};
    steps_.clear();
    for (const auto& layer : attention_) steps_.push_back(layer->begin(texts));
    const FreeCores::Team team(cores_.size());
    decoder_->run({.tokens = tokens_,
                   .layers = steps_,
                   .x = static_cast<const T*>(x_b1c.const_data_ptr()),
                   .logits = z_bv.mutable_data_ptr<float>()});
  }

 private:
  static bool by_operations(const std::unique_ptr<LayerAttention<T>>& layer) {
    return layer->use().form == TokenForm::operations;
  }

  std::string operations_note() const {
    const auto first = std::ranges::find_if(attention_, by_operations);
    if (first == attention_.end()) return {};
    return fmt::format("attention of {} of {} layers by single operations: {}",
                       std::ranges::count_if(attention_, by_operations), attention_.size(),
                       (*first)->use().why);
  }

  // What attention by the walk reads, one a state; none where no layer has one.
  std::vector<PassContext> passes_of(const Transformer::Impl& model,
                                     std::span<DecodeState* const> states) const {
    std::vector<PassContext> passes;
    if (std::ranges::none_of(attention_, by_operations)) return passes;
    for (DecodeState* const state : states) {
      PassContext& pass = passes.emplace_back();
      pass.positions = model.next_positions(state->lengths(), 1);
      pass.rope = state->rope;
      pass.focus = model.compute.focus;
      pass.earlier = state;
    }
    return passes;
  }

  Description description_;
  std::vector<kernels::TokenPosition> tokens_;
  std::vector<std::unique_ptr<LayerAttention<T>>> attention_;  // of each layer
  std::vector<kernels::DecoderLayerStep<T>> steps_;
  std::unique_ptr<kernels::Decoder<T>> decoder_;
  FreeCores cores_;
};

// The CPU's decoder takes every model; those of other devices say what they lack.
std::optional<std::string> why_no_decoder_there(const Transformer::Impl& model) {
  const kernels::Backend* const backend = backend_of(model.device);
  if (backend == nullptr) return "no kernels for this device";
  if (model.config.lora.active()) return "adapters are not merged there";
  return with_kernel_type(model.compute.dtype, "fused decoder", [&]<class T>(T) {
    if (auto why = backend->why_no_decoder<T>()) return why;  // before anything is described
    return backend->why_not_decode<T>(Description(model, /*merges=*/false).model());
  });
}

}  // namespace

std::optional<std::string> Transformer::Impl::why_no_fused_decoder() const {
  if (!compute.fused_decoder || compute.attention_path == Path::reference) return "not wanted";
  if (compute.dtype != at::kFloat && compute.dtype != at::kBFloat16)
    return fmt::format("it does not compute in {}", at::toString(compute.dtype));
  for (const LayerWeights& w : layers) {
    if (w.block.interleaved) return "rope.layout interleaved";
    for (const at::Tensor* matrix : {&w.wq, &w.wk, &w.wv, &w.wo, &w.gate, &w.up, &w.down, &head})
      if (matrix->defined() && !format_of(*matrix))
        return fmt::format("matrices are held in {}", at::toString(matrix->scalar_type()));
    const AttentionSpec spec = spec_in_force(w.spec, compute);
    const TokenUse use = token_form(spec);
    if (use.form != TokenForm::operations) continue;
    // The walk's operations would rotate queries and keys themselves.
    if (reads_plain_heads(spec)) return use.why;
    if (w.wo.defined() && matrix_inputs(w.wo) != config.heads * config.head_dim)
      return "values of another width than keys";
    const kernels::AttentionDecode<float> problem{
        .sizes = {.head_dim = config.head_dim, .value_dim = config.head_dim}};
    if (auto why = kernels::cpu().why_not(problem)) return why;
  }
  return device.is_cpu() ? std::nullopt : why_no_decoder_there(*this);
}

FusedDecoderKey Transformer::Impl::fused_decoder_key() const {
  FusedDecoderKey key{
      .memory = {}, .versions = {}, .matrices = head.scalar_type(), .compute = compute};
  const auto add = [&](const at::Tensor& x) {
    key.memory.push_back(x.defined() ? x.const_data_ptr() : nullptr);
  };
  const bool copies =
      config.lora.active() || config.norm_depth_scale != HeadOutputSpec::DepthScale::none;
  for (const Parameter& p : registry.all()) {
    add(p.value);
    if (copies) key.versions.push_back(static_cast<int64_t>(p.value._version()));
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
  if (refused && refused->first == key) return refused->second;
  if (std::optional<std::string> why_not = why_no_fused_decoder()) {
    refused.emplace(std::move(key), *why_not);
    return why_not;
  }
  with_kernel_type(compute.dtype, "fused decoder", [&]<class T>(T) {
    fused = std::make_unique<Compiled<T>>(std::move(key), *this);
  });
  ++compilations;
  return std::nullopt;
}

at::Tensor Transformer::Impl::decode_fused(const at::Tensor& tokens_bt,
                                           std::span<DecodeState* const> states) const {
  std::vector<int64_t> lengths;
  for (const DecodeState* state : states)
    for (const int64_t length : state->lengths()) lengths.push_back(length);
  const at::Tensor x =
      embed(tokens_bt, next_positions(lengths, 1), std::ranges::max(lengths)).contiguous();
  const at::Tensor z = at::empty({tokens_bt.size(0), head.size(0)}, x.options().dtype(at::kFloat));
  fused->step(*this, x, states, z);
  return z;
}

}  // namespace fovea
