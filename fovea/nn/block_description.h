// Description of one block's computation, read by the layers and by the fused decoder. It is made
// once from the config when the model is built.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/common/decoder.h"
#include "fovea/nn/model_config.h"

namespace fovea {

/// The norms that the blocks of a layout have (7.2).
struct NormPlaces {
  bool attention_in = false, attention_out = false, ffn_in = false, ffn_out = false;
};

struct BlockDescription {
  NormPlaces norms;
  kernels::BlockJoin join = kernels::BlockJoin::delta;
  /// Form of all norms of the residual stream.
  kernels::RowNorm::Form norm = kernels::RowNorm::Form::rms;
  float eps = 0.0f;
  double norm_factor = 1.0;  ///< of what attention_in and ffn_in give (M-8)
  kernels::HeadNorm head_norm = kernels::HeadNorm::none;
  /// Factor of the learned length of HeadNorm::length, because the pipeline divides by sqrt(d).
  double length_factor = 1.0;
  bool rotated = true, interleaved = false;  ///< queries and keys by RoPE, and their layout
  bool gated = true;
  kernels::Activation activation = kernels::Activation::silu;
};

/// The description of one layer; the config must be resolved.
BlockDescription describe_block(const ModelConfig& config, int64_t layer);

/// a of a feed-forward, with or without its gate (7.4).
kernels::Activation activation_of(FeedForward kind);

}  // namespace fovea
