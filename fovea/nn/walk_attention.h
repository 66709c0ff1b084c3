// Attention of one layer that the fused decoder leaves to its caller: by the kernels, on the rows
// of the cache, or by the walk's operations. Private to fovea/nn.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fovea/attention/cache/token_attention.h"
#include "fovea/kernels/common/decoder.h"
#include "fovea/kernels/common/scalar_formulas.h"
#include "fovea/nn/matrix.h"
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
  /// Of the sequences from `first` on.
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

/// Attention of one layer that no kernel of the decoder has, on what the decoder gives and takes.
template <class T>
class WalkAttention {
 public:
  /// `token`: by the kernels; nothing: by the walk's operations.
  WalkAttention(int64_t layer, const ModelConfig& config, const FocusSpec& focus, int64_t sequences,
                at::ScalarType dtype, std::optional<TokenAttention> token)
      : layer_(layer),
        width_(config.width),
        options_(dtype),
        q_shape_{sequences, config.heads, 1, config.head_dim},
        k_b1gd_(at::empty({sequences, config.kv_heads, 1, config.head_dim}, options_)),
        v_b1gd_(at::empty_like(k_b1gd_)),
        token_(std::move(token)),
        groups_(focus) {}

  bool by_kernels() const { return token_.has_value(); }

  /// The states of this step; the passes live as long as it.
  void begin(const Transformer::Impl& model, std::span<const PassContext> passes) {
    model_ = &model;
    passes_ = passes;
  }
  kernels::SequenceCache<T> rows(size_t sequence) const {
    const auto of = [&](const at::Tensor& x) {
      T* const data = static_cast<T*>(x.data_ptr()) + static_cast<int64_t>(sequence) * x.stride(0);
      return kernels::HeadRows<T>{data, x.stride(0), x.stride(1), x.stride(2)};
    };
    return {.keys = of(k_b1gd_), .values = of(v_b1gd_)};
  }
  kernels::CallerAttention<T> hook() {
    return {.object = this, .attend = [](void* object, const kernels::CallerTokens<T>& tokens) {
              auto* const self = static_cast<WalkAttention*>(object);
              self->by_kernels() ? self->attend_by_kernels(tokens)
                                 : self->attend(tokens.y, tokens.q, tokens.out);
            }};
  }

 private:
  void attend_by_kernels(const kernels::CallerTokens<T>& tokens) {
    const auto layer = static_cast<size_t>(layer_);
    const LayerWeights& weights = model_->layers[layer];
    const int64_t heads = q_shape_[1], width = q_shape_[3];
    const auto row = [](const at::Tensor& x, int64_t n) {
      return kernels::HeadRows<const T>{static_cast<const T*>(x.const_data_ptr()) + n * x.stride(0),
                                        x.stride(0), x.stride(1), x.stride(2)};
    };
    groups_.choose(tokens.scores, q_shape_[0]);
    int64_t first = 0;
    for (const PassContext& pass : passes_) {
      const int64_t at = first * heads * width;
      const TokenHeads<T> token{
          .q = {tokens.q + at, heads * width, width, width},
          .k = row(k_b1gd_, first),
          .v = row(v_b1gd_, first),
          .start_q = {tokens.start_q != nullptr ? tokens.start_q + at : nullptr, heads * width,
                      width, width},
          .out = {tokens.out + at, heads * width, width, width},
          .tau = tokens.tau != nullptr ? tokens.tau + first : nullptr,
          .focus = groups_.from(first, weights.focus)};
      token_->attend(pass.earlier->layers[layer], weights.stages, token);
      first += pass.positions.size(0);
    }
  }

  void attend(const T* y, const T* q, T* out) const {
    const auto given = [&](const T* data, at::IntArrayRef shape) {
      return at::from_blob(const_cast<T*>(data), shape, options_);  // it is only read
    };
    const int64_t all = q_shape_[0];
    const at::Tensor y_b1c = given(y, {all, 1, width_}), q_bh1d = given(q, q_shape_),
                     out_b1c = given(out, {all, 1, q_shape_[1] * q_shape_[3]});
    int64_t first = 0;
    for (const PassContext& pass : passes_) {
      const int64_t count = pass.positions.size(0);
      const auto part = [&](const at::Tensor& x) { return x.narrow(0, first, count); };
      LayerStep step = model_->begin_layer(layer_, pass);
      model_->set_input(step, part(y_b1c), pass);
      Heads heads{.q_bhtd = part(q_bh1d), .k_bgtd = part(k_b1gd_), .v_bgtd = part(v_b1gd_)};
      if (step.spec.differential) heads.v_bgtd = paired_values(heads.v_bgtd);
      model_->set_heads(step, std::move(heads), pass);
      AttentionContext context = pass.attention;
      context.layer = layer_;
      const AttentionResult result = step.keys.attend(step, context);
      part(out_b1c).copy_(result.out_bhte.transpose(1, 2).flatten(2));
      first += count;
    }
  }

  const int64_t layer_, width_;
  const at::TensorOptions options_;
  const std::vector<int64_t> q_shape_;
  const at::Tensor k_b1gd_, v_b1gd_;  // of the new token
  std::optional<TokenAttention> token_;
  StepGroups groups_;
  const Transformer::Impl* model_ = nullptr;
  std::span<const PassContext> passes_;
};

/// Why not even WalkAttention takes a layer.
inline std::optional<std::string> why_not_walk_attention(const ModelConfig& config,
                                                         const LayerWeights& w,
                                                         const AttentionSpec& spec) {
  if (w.spec.routing.active()) return "routing reads queries and keys without rotation";
  if (spec.streaming.active())  // the walk's operations rotate queries themselves
    if (const auto why = why_not_token_attention(spec)) return "streaming: " + *why;
  if (w.wo.defined() && matrix_inputs(w.wo) != config.heads * config.head_dim)
    return "values of another width than keys";
  return kernels::why_not_attention_kernels(config.head_dim, config.head_dim);
}

}  // namespace fovea
