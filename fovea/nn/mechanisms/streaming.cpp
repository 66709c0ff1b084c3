// StreamingLLM in a model: queries of start keys, rotated to their place in the cache (spec 4.6).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/streaming_rule.h"
#include "fovea/base/error.h"
#include "fovea/nn/mechanisms/model_mechanism.h"
#include "fovea/nn/ops.h"
#include "fovea/nn/transformer_impl.h"
#include "fovea/nn/walk.h"

namespace fovea {
namespace {

void load_start_queries(LayerStep& step, const PassContext& pass) {
  if (!step.spec.streaming.active()) return;
  const BlockDescription& block = step.layer.block;
  if (!block.rotated) {
    step.tensors.start_q_bhtd = step.heads.q_bhtd;
    return;
  }
  at::Tensor q = step.heads.plain_q_bhtd;
  if (block.interleaved) q = heads_to_half_split(q, step.config.rope.rotary_dim);
  step.tensors.start_q_bhtd =
      apply_rope(q, pass.rope, places_in_cache(step.layer.spec.streaming, pass.positions));
}

void check_positions(const ModelConfig& c) {
  require<UnsupportedError>(
      !c.attention.spec.streaming.active() ||
          (c.positions != Positions::learned && c.positions != Positions::sinusoidal),
      "model",
      "'model.attention.streaming' with positions {} is not defined (they are added to the "
      "embeddings, and a cache cannot count them anew); use rope, none or a position bias",
      enum_name(c.positions));
}

}  // namespace

ModelMechanism model_streaming() {
  return {.mechanism = streaming_mechanism, .check = check_positions, .load = load_start_queries};
}

}  // namespace fovea
