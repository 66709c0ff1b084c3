// Internals of the decoder: the parameters that each layer owns. Private to fovea/nn.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "fovea/attention/mechanisms/focal.h"
#include "fovea/base/by_type.h"
#include "fovea/base/error.h"
#include "fovea/nn/block_description.h"
#include "fovea/nn/fused_decoder.h"
#include "fovea/nn/layers.h"
#include "fovea/nn/lora.h"
#include "fovea/nn/mechanisms/focus_layer.h"
#include "fovea/nn/ops.h"
#include "fovea/nn/transformer.h"
#include "fovea/nn/walk.h"

namespace fovea {

/// Projections of Longformer's global rows (spec 4.1).
struct GlobalProjections {
  at::Tensor wq, wk, wv, bq, bk, bv;

  bool defined() const { return wq.defined(); }
};

/// Parameters of one decoder block; undefined where the config has none.
struct LayerWeights {
  AttentionSpec spec;
  BlockDescription block;
  NormWeights attention_in, attention_out, ffn_in, ffn_out;
  at::Tensor wq, wk, wv, wo, bq, bk, bv, bo;
  at::Tensor gate, up, down, gate_bias, up_bias, down_bias;
  at::Tensor q_gain, k_gain, qk_scale;
  AttentionTensors stages;          // of this layer alone: no tau, bias table, lambda
  std::vector<at::Tensor> lambdas;  // Differential: lq1, lk1, lq2, lk2
  TemperatureParameters temperature;
  LayerFocus focus;
  ByType states;  // of mechanisms, each of which alone knows its own
  GlobalProjections globals;
  LayerLora lora;
};

/// Queries, keys and values from their products [b, t, (h + 2g) d] side by side: norms, rotation.
Heads heads_of(const ModelConfig& config, const LayerWeights& layer, const at::Tensor& qkv,
               const PassContext& pass);

/// Differential: neighbouring value heads are one of twice the width (1.1).
at::Tensor paired_values(const at::Tensor& v_bgtd);

/// `normaliser` where there is one, else the number of targets, at least 1.
double loss_divisor(double normaliser, const at::Tensor& targets);

struct Transformer::Impl {
  Impl(const ModelConfig& c, uint64_t seed, at::Device d, FirstNumbers first);

  ModelConfig config;
  at::Device device;
  ParameterRegistry registry;
  ComputeOptions compute;
  at::Tensor embedding, head, bias_table;
  NormWeights final_norm;
  at::Tensor position_table;  // learned, or sinusoidal of config.context rows
  std::vector<LoraPlace> lora;
  std::vector<LayerWeights> layers;
  RopeTable rope;  // of config.context positions; longer inputs make their own
  /// Compiled at the first token that it takes; a training pass drops it, with the matrices into
  /// which adapters are merged.
  mutable std::unique_ptr<FusedDecoder> fused;
  /// Why it does not take the model as the key describes it: the question makes tensors.
  mutable std::optional<std::pair<FusedDecoderKey, std::string>> refused;
  mutable int64_t compilations = 0;

  /// Registers the parameters of a layer: projections, norms, mechanisms, feed-forward, adapters.
  LayerWeights add_layer(int64_t index);
  void check(const ModelInput& input) const;
  RopeTable rope_for(int64_t positions) const;
  PassContext make_pass(const ModelInput& input) const;
  at::Tensor embed(const at::Tensor& tokens_bt, const at::Tensor& positions_bt,
                   int64_t last_position) const;
  LogitTransform logit_rule(double z_loss) const;
  /// The keys that ask for losses beside the model's own, or "".
  std::string added_loss_keys() const;
  /// Logits from the head's product (7.4).
  at::Tensor ruled(const at::Tensor& product) const;
  /// int64 [b, t] of the next t tokens of sequences of these lengths.
  at::Tensor next_positions(const std::vector<int64_t>& lengths, int64_t t) const;
  Heads project(const LayerWeights& layer, const at::Tensor& y, const PassContext& pass) const;

  /// One block on the residual stream: `x` is the stream before `delta` (the previous block's
  /// output, may be undefined) is added.
  struct Stream {
    at::Tensor x, delta;
  };
  /// The stream with what waits in delta, and what attention of the layer reads (spec 7.2).
  std::pair<at::Tensor, at::Tensor> attention_input(const LayerWeights& layer,
                                                    const Stream& stream) const;
  at::Tensor feed_forward(const LayerWeights& layer, const at::Tensor& z,
                          const PassContext& pass) const;
  /// `y`, the products of the sites side by side, with what their adapters add for input `x`.
  at::Tensor adapted(const LayerWeights& layer, std::initializer_list<LoraSite> sites,
                     const at::Tensor& y, const at::Tensor& x, const PassContext& pass) const;
  /// The final norm of what the last block left.
  at::Tensor finish(const Stream& stream) const;
  /// The layer up to its attention: begin_layer(), its input, set_heads().
  LayerStep enter_layer(int64_t index, const Stream& stream, const PassContext& pass) const;
  LayerStep begin_layer(int64_t index, const PassContext& pass) const;
  /// Sets the normed input, and the inputs that mechanisms take from it alone.
  void set_input(LayerStep& step, at::Tensor y, const PassContext& pass) const;
  /// Queries, keys and values, and what mechanisms add to the call.
  void set_heads(LayerStep& step, Heads heads, const PassContext& pass) const;
  /// The rest of the block, from the two results of attention_input() and attention's output.
  Stream leave_layer(int64_t index, const at::Tensor& x, const at::Tensor& y,
                     const at::Tensor& attended, const PassContext& pass) const;
  Stream run_layer(int64_t index, const Stream& stream, const PassContext& pass,
                   Observers observers) const;
  Stream run_layer_checkpointed(int64_t index, const Stream& stream, const PassContext& pass,
                                Observers observers) const;
  /// All layers and the last norm (walk.h): hidden states [b, t, c].
  at::Tensor walk(const at::Tensor& tokens_bt, const PassContext& pass, Observers observers) const;
  /// A pass over the next tokens of the cached sequences.
  PassContext next_pass(const at::Tensor& tokens_bt, DecodeState& state) const;
  /// The streams that the cache of each layer keeps.
  std::vector<std::vector<StreamSpec>> cached_streams() const;
  /// Why the fused decoder does not take this model; nothing where it does.
  /// The instruction set or architecture of the decoder's kernels.
  std::string isa() const;
  std::optional<std::string> why_no_fused_decoder() const;
  FusedDecoderKey fused_decoder_key() const;
  /// Compiles the fused decoder unless it is there; or why it does not take these tokens.
  std::optional<std::string> prepare_fused_decoder(const at::Tensor& tokens_bt) const;
  /// Logits [b, v] of one token of each sequence of the states.
  at::Tensor decode_fused(const at::Tensor& tokens_bt, std::span<DecodeState* const> states) const;
};

}  // namespace fovea
