// Attention of one layer of the compiled decoder, in the form of its token step (private to
// fovea/nn). It runs in the decoder's kernels, in other kernels between these, or in the walk's
// operations.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <span>
#include <vector>

#include "fovea/attention/decode/token_rows.h"
#include "fovea/attention/decode/token_step.h"
#include "fovea/kernels/common/scalar_formulas.h"
#include "fovea/nn/transformer_impl.h"

namespace fovea {

/// The groups of the tokens of a step, from their scores: group_tokens() without tensors.
class StepGroups {
 public:
  explicit StepGroups(const FocusSpec& spec) : spec_(spec) {}

  /// `scores` [sequences][groups], with potentials; null without Focus.
  void choose(const float* scores, int64_t sequences) {
    if (scores == nullptr) return;
    groups_.assign(scores, scores + sequences * spec_.groups);
    members_.clear();
    for (int64_t b = 0; b < sequences; ++b) {
      const auto row = std::span(groups_).subspan(static_cast<size_t>(b * spec_.groups),
                                                  static_cast<size_t>(spec_.groups));
      std::vector<float> remaining(row.begin(), row.end());
      members_.push_back(static_cast<int64_t>(kernels::top_groups(remaining, spec_.top_k)));
      kernels::softmax(row);
    }
  }
  /// Inputs of Focus for the sequences from `first` on.
  TokenFocus from(int64_t first, const LayerFocus& layer) const {
    if (!spec_.active()) return {};
    return {.groups = groups_.data() + first * spec_.groups,
            .members = members_.data() + first,
            .strength = spec_.reads_strength() ? layer.strength().template item<float>() : 0.0f};
  }

 private:
  const FocusSpec spec_;
  std::vector<float> groups_;
  std::vector<int64_t> members_;
};

/// Input of one step of the decoder: texts of one sequence or more, and the token of each.
struct DecodedTexts {
  const Transformer::Impl& model;
  std::span<DecodeState* const> states;
  std::span<const kernels::TokenPosition> tokens;
  std::span<const PassContext> passes;  ///< of the walk's operations, one a state
};

template <class T>
class LayerAttention {
 public:
  /// `spec`: in force. The data behind the pointers of `rule` outlives this object.
  LayerAttention(int64_t layer, const AttentionSpec& spec, const TokenUse& use,
                 const kernels::ScoreParameters& rule)
      : layer_(layer), use_(use), rows_(spec, use.form), groups_(spec.focus) {
    if (use.form == TokenForm::kernels) token_.emplace(spec, rule);
  }

  const TokenUse& use() const { return use_; }

  /// The memory that the decoder reads and writes for this step's tokens; `texts` lives as long.
  kernels::DecoderLayerStep<T> begin(const DecodedTexts& texts) {
    texts_ = &texts;
    caches_.clear();
    for (DecodeState* const state : texts.states) {
      const auto layer = static_cast<size_t>(layer_);
      caches_.push_back({.cache = &state->layers[layer], .sorted = &state->sorted[layer]});
    }
    rows_.begin(caches_, texts.tokens);
    kernels::DecoderLayerStep<T> step = rows_.step();
    if (step.choice.object != nullptr)
      for (size_t n = 0; n < caches_.size(); ++n) texts.states[n]->path.plan = rows_.plan(n);
    if (use_.form != TokenForm::decoder)
      step.attention = {.object = this, .attend = [](void* object, const Tokens& tokens) {
                          static_cast<LayerAttention*>(object)->attend(tokens);
                        }};
    return step;
  }

 private:
  using Tokens = kernels::CallerTokens<T>;

  void attend(const Tokens& tokens) {
    if (use_.form == TokenForm::kernels) groups_.choose(tokens.scores, std::ssize(texts_->tokens));
    int64_t first = 0;
    for (size_t n = 0; n < caches_.size(); ++n) {
      use_.form == TokenForm::kernels ? attend_by_kernels(n, first, tokens)
                                      : attend_by_operations(n, first, tokens);
      first += caches_[n].cache->batch();
    }
  }

  void attend_by_kernels(size_t text, int64_t first, const Tokens& tokens) {
    const ModelConfig& config = texts_->model.config;
    const LayerWeights& weights = texts_->model.layers[static_cast<size_t>(layer_)];
    const int64_t d = config.head_dim, row = config.heads * d;
    const auto from = [first](auto rows) {
      return kernels::HeadRows<const T>{rows.data + first * rows.batch, rows.batch, rows.head,
                                        rows.row};
    };
    const auto heads = [&](const T* data) {
      return data != nullptr ? kernels::HeadRows<const T>{data + first * row, row, d, d}
                             : kernels::HeadRows<const T>{};
    };
    token_->attend(*caches_[text].cache, weights.stages,
                   TokenHeads<T>{.q = heads(tokens.q),
                                 .k = from(rows_.new_keys()),
                                 .v = from(rows_.new_values()),
                                 .start_q = heads(tokens.start_q),
                                 .out = {tokens.out + first * row, row, d, d},
                                 .tau = tokens.tau != nullptr ? tokens.tau + first : nullptr,
                                 .focus = groups_.from(first, weights.focus)});
  }

  void attend_by_operations(size_t text, int64_t first, const Tokens& tokens) {
    const Transformer::Impl& model = texts_->model;
    const PassContext& pass = texts_->passes[text];
    const int64_t count = caches_[text].cache->batch(), h = model.config.heads,
                  g = model.config.kv_heads, d = model.config.head_dim, c = model.config.width;
    const at::TensorOptions options(model.compute.dtype);
    const auto given = [&](const T* data, at::IntArrayRef shape) {
      return at::from_blob(const_cast<T*>(data), shape, options);  // it is only read
    };
    LayerStep step = model.begin_layer(layer_, pass);
    model.set_input(step, given(tokens.y + first * c, {count, 1, c}), pass);
    Heads heads{.q_bhtd = given(tokens.q + first * h * d, {count, h, 1, d}),
                .k_bgtd = given(rows_.new_keys().data + first * g * d, {count, g, 1, d}),
                .v_bgtd = given(rows_.new_values().data + first * g * d, {count, g, 1, d})};
    if (step.spec.differential) heads.v_bgtd = paired_values(heads.v_bgtd);
    model.set_heads(step, std::move(heads), pass);
    AttentionContext context = pass.attention;
    context.layer = layer_;
    const AttentionResult result = step.keys.attend(step, context);
    given(tokens.out + first * h * d, {count, 1, h * d})
        .copy_(result.out_bhte.transpose(1, 2).flatten(2));
  }

  const int64_t layer_;
  const TokenUse use_;
  TokenRows<T> rows_;
  std::optional<TokenStep> token_;  // of form `kernels`
  StepGroups groups_;
  std::vector<TokenCache> caches_;
  const DecodedTexts* texts_ = nullptr;
};

}  // namespace fovea
