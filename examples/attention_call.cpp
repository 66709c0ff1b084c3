// One attention, whatever the mechanism: standard, Focal (a constant temperature), a window with
// sinks. Prints the path that was taken and how sharp the weights are.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <iostream>

#include "fovea/attention/attention.h"

int main() {
  constexpr int64_t batch = 2, heads = 4, kv_heads = 2, tokens = 64, width = 32;
  at::manual_seed(0);
  const at::Tensor q = at::randn({batch, heads, tokens, width}).requires_grad_();
  const at::Tensor k = at::randn({batch, kv_heads, tokens, width});
  const at::Tensor v = at::randn({batch, kv_heads, tokens, width});

  // What the attention is stands in the spec; nothing in it says how to compute it.
  fovea::AttentionSpec standard{.heads = heads, .kv_heads = kv_heads, .head_dim = width};
  fovea::AttentionSpec focal = standard;
  focal.temperature.value = 0.4;  // logits q.k / (0.4 sqrt(d)): sharper
  fovea::AttentionSpec window = standard;
  window.mask.window = 16;
  window.mask.sinks = 2;

  double entropy_before = 0;
  for (const auto& [name, spec] :
       {std::pair{"standard", standard}, std::pair{"focal", focal}, std::pair{"window", window}}) {
    const fovea::AttentionResult result = fovea::attention(spec, q, k, v);
    const fovea::AttentionStats stats = fovea::attention_stats(spec, q, k);
    const double entropy = stats.entropy_h.mean().item<double>();
    std::cout << name << ": path " << enum_name(result.path.name) << " ("
              << result.path.reason.text() << "), entropy " << entropy << " nats, largest weight "
              << stats.largest_weight_h.mean().item<double>() << '\n';
    if (name == std::string("focal") && entropy >= entropy_before) return 1;
    entropy_before = entropy;
  }

  // Differentiable, and equal to the definition in plain tensor operations.
  const at::Tensor out = fovea::attention(focal, q, k, v).out_bhte;
  out.sum().backward();
  const at::Tensor defined = fovea::reference_attention(focal, q, k, v).out_bhte;
  const double difference = (out - defined).abs().max().item<double>();
  std::cout << "largest difference from the reference: " << difference << '\n';
  return difference < 1e-4 && q.grad().defined() ? 0 : 1;
}
