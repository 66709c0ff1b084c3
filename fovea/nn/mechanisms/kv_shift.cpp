// KV shifting: its weights, which start neutral or as the recipe says.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/specs/kv_shift.h"

#include <ATen/ATen.h>

#include "fovea/nn/mechanisms/mechanism.h"

namespace fovea {
namespace {

void build_shift(const LayerBuild& build, LayerWeights& layer) {
  const KvShiftSpec& spec = build.spec.kv_shift;
  const auto weight = [&](const char* name, int64_t heads) {
    const at::Tensor start = at::tensor({1.0 - spec.start, spec.start}).expand({heads, 2});
    return build.add(name, {heads, 2}, {.kind = Init::Kind::given, .start = start},
                     build.config.attention.decay_added);
  };
  if (spec.keys) layer.stages.key_shift_g2 = weight("kv_shift.key_weight", build.spec.kv_heads);
  if (spec.values)
    layer.stages.value_shift_g2 = weight("kv_shift.value_weight", build.spec.value_heads());
}

}  // namespace

LearnedMechanism learned_kv_shift() { return {.name = "kv_shift", .build = build_shift}; }

}  // namespace fovea
