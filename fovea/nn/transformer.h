// The decoder: tokens to hidden states, losses and logits. Forward is pure.
//
// Shape suffixes: b batch, t tokens, c width, v vocabulary.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/attention/attention.h"
#include "fovea/base/by_type.h"
#include "fovea/kernels/common/weight_format.h"
#include "fovea/nn/decode_state.h"
#include "fovea/nn/mechanisms/focus_layer.h"
#include "fovea/nn/model_config.h"
#include "fovea/nn/parameters.h"
#include "fovea/runtime/communicator.h"
#include "fovea/runtime/reading.h"

namespace fovea {

/// One batch as the model sees it. Documents and positions are best on the CPU, wherever the model
/// is: the host plans by them.
struct ModelInput {
  at::Tensor tokens_bt;     ///< int64
  at::Tensor documents_bt;  ///< int64 or undefined (one document a row)
  at::Tensor positions_bt;  ///< int64 or undefined (0 ... t-1)
  uint64_t dropout_seed = 0;
  bool training = false;
};

/// The report of a forward pass.
struct ForwardInfo {
  PathTaken path;            ///< of the last layer
  int64_t fused_layers = 0;  ///< layers that our kernels computed
  /// Effective t of each layer (mean tau / sqrt(d); 1 without Focal).
  std::vector<Reading> temperature;
  std::vector<Reading> clipped_shares;  ///< of learned temperatures, over the layers (F-3)
  std::vector<FocusObservation> focus;  ///< one a layer where some layer has Focus, else empty
  ByType observed;                      ///< of mechanisms, for their observe()
  std::vector<KeysRead> keys_read;      ///< of layers that choose keys by content

  double clipped_share() const;  ///< mean over layers
  /// Everything that is still on the device, for Reading::together().
  std::vector<const Reading*> readings() const;
};

/// Options of computing that the config does not hold.
struct ComputeOptions {
  at::ScalarType dtype = at::kFloat;  ///< of activations and matrix products; masters stay float32
  bool checkpoint_layers = false;     ///< recompute each layer's activations in the backward pass
  Path attention_path = Path::automatic;
  FocusMode focus = FocusMode::configured;
  FocusChange focus_change;
  double temperature_ramp = 1.0;  ///< constant temperatures are 1 + ramp (t - 1) (F-9)
  int64_t loss_chunk = 8192;      ///< rows whose logits exist at a time
  bool fused_decoder = true;      ///< of one token, where the model allows it; off for comparisons
  /// How products with packed weights read their inputs: exact, or rounded in blocks of 32 to 8
  /// bits, or to 16 bits where a few tokens are multiplied.
  kernels::Activations activations = kernels::Activations::exact;

  bool operator==(const ComputeOptions&) const = default;
};

/// Mean cross-entropy over targets >= 0.
struct LossResult {
  at::Tensor loss;     ///< scalar float32: sum of NLL / `normaliser`
  at::Tensor nll_sum;  ///< scalar float64, detached: sum of NLL in nats
  at::Tensor targets;  ///< scalar int64: number of targets >= 0
  /// [2] float64, detached: sums of ln Z and of (ln Z)^2 over the targets, Z the softmax's sum of
  /// the logits. Undefined where the objective has no such logits.
  at::Tensor ln_z_sums = {};
};

/// The attention weights that a look at a text wants; an empty list means all.
struct LookOptions {
  std::vector<int64_t> layers = {}, heads = {}, queries = {};
};

/// One layer at work on one text.
struct LayerView {
  AttentionSpec spec;  ///< in the model's present mode
  /// Weights of the wanted heads and queries, float32, by recomputation; undefined for a layer that
  /// is not wanted. The bits of a row do not depend on the other wanted rows.
  at::Tensor weights_hqs;
  AttentionStats stats;      ///< per head, over all rows of the text
  LayerGroups groups;        ///< with Focus; of batch 1
  double temperature = 1.0;  ///< effective t (mean tau / sqrt(d))
};

class LayerWalk;  // layer_walk.h

class Transformer {
 public:
  /// Builds and draws the first numbers, unless they are awaited; `config` must be resolved. The
  /// same seed gives the same numbers on any device. MemoryError where they would not fit.
  Transformer(const ModelConfig& config, uint64_t seed, at::Device device = at::kCPU,
              FirstNumbers first = FirstNumbers::drawn);
  ~Transformer();
  Transformer(Transformer&&) noexcept;

  const ModelConfig& config() const;
  ParameterRegistry& parameters();
  const ParameterRegistry& parameters() const;
  at::Device device() const;
  ComputeOptions& compute();
  const ComputeOptions& compute() const;
  /// For inference only: keeps the matrices of linear layers, embedding and head in `dtype`, so
  /// that nothing is cast at every token. In bfloat16 they take half the memory; hidden states
  /// computed in bfloat16 stay what they were, bit for bit, logits see a rounded head. No parameter
  /// is trainable afterwards.
  void hold_matrices_in(at::ScalarType dtype);

  /// Final-normed hidden states [b, t, c] in the compute dtype.
  at::Tensor hidden(const ModelInput& input, ForwardInfo* info = nullptr) const;
  /// float32 logits [..., v] of hidden states.
  at::Tensor logits(const at::Tensor& hidden) const;
  /// Cross-entropy of targets_bt (int64; < 0 = no loss), summed and divided by `normaliser` (0 =
  /// number of targets); never more than a chunk of the logits in float32. `z_loss` is alpha of
  /// alpha (ln Z)^2, in `loss` alone (7.4).
  LossResult loss(const ModelInput& input, const at::Tensor& targets_bt, double normaliser = 0.0,
                  ForwardInfo* info = nullptr, double z_loss = 0.0) const;
  /// NLL of each target [b, t] float32 (0 where target < 0), without gradients: scoring.
  at::Tensor token_nll(const ModelInput& input, const at::Tensor& targets_bt,
                       ForwardInfo* info = nullptr) const;

  /// A loss that a mechanism brings, by its name in `train.objective` (11.7: "kept_mass",
  /// "distillation"); divided as in loss(). UnsupportedError where the model lacks the mechanism.
  LossResult objective(std::string_view name, const ModelInput& input, const at::Tensor& targets_bt,
                       double normaliser = 0.0, ForwardInfo* info = nullptr) const;

  /// A cache for `batch` sequences of at most `capacity` tokens.
  DecodeState make_decode_state(int64_t batch, int64_t capacity) const;
  /// Bytes of its keys, its values and all else that a layer keeps of a token.
  int64_t decode_state_bytes(int64_t batch, int64_t capacity) const;
  /// Appends tokens [b, t] and returns float32 logits of the last one [b, v] (all = of every one
  /// [b, t, v]). Sequences may have unequal lengths (DecodeState::join). One token of each goes
  /// through all layers in the fused decoder (kernels/common/decoder.h) where the model's options
  /// allow it; state.path tells. One thread at a time decodes with a model.
  at::Tensor decode(const at::Tensor& tokens_bt, DecodeState& state, bool all = false) const;
  /// The same tokens' final-normed hidden states [b, t, c] in place of logits, layer by layer: for
  /// callers who need the logits of a few rows (scoring).
  at::Tensor decode_hidden(const at::Tensor& tokens_bt, DecodeState& state) const;
  /// decode_hidden() in parts (layer_walk.h).
  LayerWalk decode_layers(const at::Tensor& tokens_bt, DecodeState& state) const;
  /// One token [b, 1] of texts that have a state each, in the fused decoder, which reads the
  /// weights once for all. Logits [b, v]; on the CPU they have the bits that decode()
  /// gives each text alone. Texts join and leave from call to call. UnsupportedError where
  /// it does not take the model.
  at::Tensor decode_together(const at::Tensor& tokens_b1,
                             std::span<DecodeState* const> states) const;

  /// Reads the first tokens of texts whose states are empty, all in one pass, in rows as long as
  /// the longest. Logits [n, v] after the last token of each; not bit for bit those that decode()
  /// gives each text alone. UnsupportedError where reads_together() refuses these lengths.
  at::Tensor read_together(std::span<const std::span<const int32_t>> texts,
                           std::span<DecodeState* const> states) const;
  /// Whether one pass may read texts of `shortest` to `longest` tokens. Caches that drop rows or
  /// keep a sum know no rows that are filled up; a dynamic rotation depends on the length.
  bool reads_together(int64_t shortest, int64_t longest) const;

  /// Why decode() of one token takes the layers one by one; nothing where the fused decoder does
  /// it.
  std::optional<std::string> why_no_fused_decoder() const;
  /// How often the fused decoder was compiled: again only after a training pass, and where
  /// parameters moved or the options changed.
  int64_t decoder_compilations() const;

  /// Every layer at work on one text: weights of the wanted rows, statistics, groups.
  std::vector<LayerView> look(const ModelInput& input, const LookOptions& wanted = {}) const;
  /// look() in parts (layer_walk.h): the memory of one layer's weights, and of one text.
  LayerWalk look_layers(const ModelInput& input, const LookOptions& wanted) const;
  /// Attention weights [h, t, t] float32 of every layer for the first text, in one pass (maps; by
  /// recomputation).
  std::vector<at::Tensor> attention_maps(const ModelInput& input) const;

  /// The heads' outputs of one layer before its output projection [b, t, heads * width]. Runs the
  /// layers up to that one.
  at::Tensor head_outputs(const ModelInput& input, int64_t layer) const;

  /// State that learns outside the gradient, from what the micro-batches of one optimizer step
  /// told; once per step (seam 2). `ema_decay`: potential_decay() of the run; `progress`: the share
  /// of it that is done after this step.
  /// Each micro-batch is that of all ranks together.
  void observe(std::span<const ForwardInfo> micro_batches, double ema_decay, double progress = 0.0,
               Communicator& ranks = alone());
  /// Sets state that wants to see inputs before training, from these batches (U-24: Focus
  /// standardises the input of every layer's groups). Layers that were observed before stay as they
  /// are.
  void calibrate(std::span<const ModelInput> batches, Communicator& ranks = alone());
  /// Whether some layer has parameters of that mechanism ("focus", "multi_token", "lora", ...).
  bool has(std::string_view mechanism) const;

  struct Impl;  // transformer_impl.h, private to fovea/nn

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace fovea
