// Multi-Token Attention: the key-query kernels before and after the softmax, which start as the
// recipe says (3.5).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/multi_token.h"

#include <ATen/ATen.h>

#include "fovea/nn/mechanisms/mechanism.h"
#include "fovea/nn/mechanisms/model_mechanism.h"

namespace fovea {
namespace {

Init kernel_init(const MultiTokenSettings& settings, int64_t heads, const KernelExtent& extent) {
  const bool uniform = settings.init == KernelStart::uniform;
  const double value = settings.init_value > 0.0 ? settings.init_value : uniform ? 1.0 : 0.3;
  if (uniform) return {.kind = Init::Kind::uniform, .value = value};
  return {.kind = Init::Kind::given, .start = start_kernel(settings.init, value, heads, extent)};
}

void build_kernels(const LayerBuild& build, LayerWeights& layer) {
  const AttentionSettings& settings = build.config.attention;
  const auto kernel = [&](const char* name, const KernelExtent& extent) {
    return extent.active() ? build.add(name, {build.spec.heads, extent.queries, extent.keys},
                                       kernel_init(settings.multi_token, build.spec.heads, extent),
                                       settings.decay_added)
                           : at::Tensor();
  };
  layer.stages.kernel_before_hqk = kernel("key_query_before.weight", build.spec.multi_token.before);
  layer.stages.kernel_after_hqk = kernel("key_query_after.weight", build.spec.multi_token.after);
}

}  // namespace

void MultiTokenSettings::describe(FieldVisitor& v) {
  v.integers(
      {"layers", "layers with convolutions, counted from 0; empty: all", ranges::kLayerIndices},
      layers);
  v.choice({"init", "start of the kernels (spec 3.5)"}, init);
  v.real({"init_value", "of init constant (0 = 0.3) and uniform +-value (0 = 1)",
          ranges::kNotNegative},
         init_value);
}

void MultiTokenSettings::check(const MultiTokenSpec& /*rule*/, int64_t model_layers) const {
  for (const int64_t layer : layers)
    check_range("attention.multi_token.layers", layer, 0, model_layers - 1);
}

void MultiTokenSettings::apply(int64_t layer, AttentionSpec& spec) const {
  if (!in_layers(layers, layer)) spec.multi_token = {};
}

ModelMechanism model_multi_token() {
  return model_mechanism<&AttentionSpec::multi_token, &AttentionSettings::multi_token>(
      multi_token_mechanism, "Multi-Token Attention: key-query convolution");
}

LearnedMechanism learned_multi_token() { return {.name = "multi_token", .build = build_kernels}; }

}  // namespace fovea
