// An attention of one's own in every verb of `fovea`: power-law forgetting with learned exponents.
//
//   s_ij = q_i k_j / sqrt(d) - w_h ln(1 + (i - j) / values[0]),   so that P_ij ~ (1 + (i-j)/u)^-w_h
//
// The exponents w_h start at 0, which is standard attention. Build it and run
//   build/bin/own_mechanism compare examples/own_mechanism/recipe.yaml
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "cli/program.h"
#include "fovea/attention/mechanisms/own_stage.h"
#include "fovea/attention/spec.h"
#include "fovea/base/error.h"

namespace {

at::Tensor forget(const at::Tensor& logits_bhts, const fovea::OwnStageCall& call) {
  const double unit = call.spec.own.values[0];
  const at::Tensor distance_bts = call.distance_bts.clamp_min(0).to(logits_bhts.scalar_type());
  const at::Tensor decay_b1ts = (distance_bts / unit).log1p().unsqueeze(1);
  return logits_bhts - call.weight.view({1, -1, 1, 1}) * decay_b1ts;
}

void check(const fovea::AttentionSpec& spec) {
  fovea::require<fovea::ConfigError>(
      spec.own.values.size() == 1 && spec.own.values[0] > 0.0, "power-decay",
      "own.values must be one number above 0, the distance where forgetting begins; got {} values",
      spec.own.values.size());
}

}  // namespace

int main(int argc, char** argv) {
  fovea::register_own_stage(
      {.name = "power-decay",
       .apply = forget,
       .weight_shape = [](const fovea::AttentionSpec& s) { return std::vector{s.heads}; },
       .weight_start = 0.0,
       .check = check});
  return fovea::cli::run_program(argc, argv);
}
