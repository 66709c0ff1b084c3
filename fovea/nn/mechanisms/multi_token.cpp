// Multi-Token Attention: the key-query kernels before and after the softmax, which start as the
// recipe says (3.5).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/multi_token.h"

#include <ATen/ATen.h>

#include "fovea/nn/mechanisms/mechanism.h"

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

LearnedMechanism learned_multi_token() { return {.name = "multi_token", .build = build_kernels}; }

}  // namespace fovea
