// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/block_description.h"

#include <cmath>

namespace fovea {
namespace {

using kernels::Activation;
using kernels::BlockJoin;
using kernels::HeadNorm;
using kernels::RowNorm;

NormPlaces norm_places(BlockLayout block) {
  const bool before = block != BlockLayout::post && block != BlockLayout::output;
  const bool after =
      block == BlockLayout::post || block == BlockLayout::output || block == BlockLayout::sandwich;
  return {.attention_in = before,
          .attention_out = after,
          .ffn_in = after ? before : block != BlockLayout::parallel,
          .ffn_out = after};
}

BlockJoin block_join(BlockLayout block) {
  if (block == BlockLayout::post) return BlockJoin::sum;
  const bool parallel = block == BlockLayout::parallel || block == BlockLayout::parallel_two;
  return parallel ? BlockJoin::parallel : BlockJoin::delta;
}

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

}  // namespace

Activation activation_of(FeedForward kind) {
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

BlockDescription describe_block(const ModelConfig& c, int64_t layer) {
  const bool rotated = c.rotated(layer);
  const bool rms = c.norm == NormKind::rms || c.norm == NormKind::rms_weightless;
  return {.norms = norm_places(c.block),
          .join = block_join(c.block),
          .norm = rms ? RowNorm::Form::rms : RowNorm::Form::layer,
          .eps = static_cast<float>(c.norm_eps),
          .norm_factor = c.norm_factor(layer),
          .head_norm = head_norm(c.qk_norm, rotated),
          .length_factor = std::sqrt(static_cast<double>(c.head_dim)),
          .rotated = rotated,
          .interleaved = rotated && c.rope.layout == RopeLayout::interleaved,
          .gated = gated(c.feed_forward),
          .activation = activation_of(c.feed_forward)};
}

}  // namespace fovea
