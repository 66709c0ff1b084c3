// Head mixing before and after the softmax: matrices that start as identities (3.5).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "fovea/nn/mechanisms/mechanism.h"

namespace fovea {
namespace {

void build_mixes(const LayerBuild& build, LayerWeights& layer) {
  const int64_t heads = build.spec.heads;
  const auto mix = [&](const char* name, HeadMixSpec::Kind kind) {
    const int64_t m = build.spec.head_mix.width(kind, heads);
    if (m == 0) return at::Tensor();
    const at::Tensor identity = at::eye(m).expand({heads / m, m, m});
    return build.add(name, {heads / m, m, m}, {.kind = Init::Kind::given, .start = identity},
                     build.config.attention.decay_added);
  };
  layer.stages.mix_before_noi = mix("head_mix_before.weight", build.spec.head_mix.before);
  layer.stages.mix_after_nio = mix("head_mix_after.weight", build.spec.head_mix.after);
}

}  // namespace

LearnedMechanism learned_head_mix() { return {.name = "head_mix", .build = build_mixes}; }

}  // namespace fovea
