// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/checkpoint/fold.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "fovea/base/error.h"

namespace fovea {
namespace {

/// What the length of queries lies in.
std::vector<const char*> query_parameters(const ModelConfig& c) {
  switch (c.qk_norm) {
    case QkNorm::none:
      if (c.biases.qkv) return {"self_attn.q_proj.weight", "self_attn.q_proj.bias"};
      return {"self_attn.q_proj.weight"};
    case QkNorm::head_rms:
    case QkNorm::full_rms:
    case QkNorm::head_layer:
      return {"self_attn.q_norm.weight"};
    case QkNorm::l2:
      return {"self_attn.qk_scale"};
    case QkNorm::weightless:
      break;
  }
  fail<UnsupportedError>("fold",
                         "with 'qk_norm: weightless' no parameter holds the length of queries; the "
                         "temperature cannot be folded");
}

/// The factor of the norms before attention and feed-forward goes into their weights.
void fold_norms(const ModelConfig& before, Transformer& folded) {
  if (before.norm_depth_scale == HeadOutputSpec::DepthScale::none) return;
  require<UnsupportedError>(
      before.norm != NormKind::rms_weightless && before.norm != NormKind::layer_weightless, "fold",
      "with 'norm: {}' no parameter holds the length of what norms give; 'norm_depth_scale' cannot "
      "be folded",
      enum_name(before.norm));
  // In a sandwich the norm after attention has the name that the second one has elsewhere.
  const char* const second = before.block == BlockLayout::sandwich ? "pre_feedforward_layernorm"
                                                                   : "post_attention_layernorm";
  for (int64_t i = 0; i < before.layers; ++i) {
    for (const char* norm : {"input_layernorm", second}) {
      for (const char* part : {"weight", "bias"}) {
        Parameter* const p =
            folded.parameters().find(fmt::format("model.layers.{}.{}.{}", i, norm, part));
        if (p != nullptr) p->value.mul_(before.norm_factor(i));
      }
    }
  }
}

}  // namespace

Transformer fold_constants(const Transformer& model) {
  const ModelConfig& before = model.config();
  require<UnsupportedError>(
      before.attention.spec.temperature.kind == TemperatureSpec::Kind::constant, "fold",
      "only a constant temperature can be folded into the weights; this model's is learned and "
      "depends on the text");
  require<UnsupportedError>(!before.lora.active(), "fold",
                            "an adapter on the queries would have to be folded too; merge it first "
                            "(export --merge)");
  ModelConfig config = before;
  config.attention.spec.temperature = {};
  config.attention.temperature_per_layer.clear();
  config.norm_depth_scale = HeadOutputSpec::DepthScale::none;
  const at::NoGradGuard no_grad;
  Transformer folded(config, 0, at::kCPU, FirstNumbers::awaited);
  for (Parameter& p : folded.parameters().all()) {
    const Parameter* from = model.parameters().find(p.name);
    require<UnsupportedError>(from != nullptr, "fold", "the folded model has a new parameter '{}'",
                              p.name);
    p.value.copy_(from->value);
    p.stored = from->stored;
  }
  for (int64_t i = 0; i < config.layers; ++i) {
    const double t = before.layer_attention(i).temperature.value;
    if (t == 1.0) continue;
    for (const char* name : query_parameters(config)) {
      Parameter* query = folded.parameters().find(fmt::format("model.layers.{}.{}", i, name));
      query->value.div_(t);
    }
  }
  fold_norms(before, folded);
  return folded;
}

}  // namespace fovea
