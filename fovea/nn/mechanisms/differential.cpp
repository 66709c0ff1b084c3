// Differential attention: the vectors of lambda, which starts near lambda_init (1.3).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "fovea/nn/mechanisms/mechanism.h"

namespace fovea {
namespace {

void build_lambdas(const LayerBuild& build, LayerWeights& layer) {
  if (!build.spec.differential) return;
  for (const char* name : {"lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"}) {
    layer.lambdas.push_back(build.add(name, {build.spec.head_dim},
                                      {.kind = Init::Kind::normal, .value = 0.1},
                                      build.config.attention.decay_added));
  }
}

void load_lambdas(LayerStep& step, const PassContext& /*pass*/) {
  if (!step.layer.lambdas.empty()) step.tensors.lambda_4d = at::stack(step.layer.lambdas);
}

}  // namespace

LearnedMechanism learned_differential() {
  return {.name = "differential", .build = build_lambdas, .load = load_lambdas};
}

}  // namespace fovea
