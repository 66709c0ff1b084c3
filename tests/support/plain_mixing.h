// Multi-Token and talking-heads attention as plain tensor operations in bfloat16: the error that
// kernels are measured by.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "fovea/attention/mechanisms/multi_token.h"
#include "fovea/attention/mechanisms/talking_heads.h"
#include "tests/support/attention_inputs.h"

namespace fovea::testing {

/// Convolutions alone, mixes alone, and both: 8 heads of 64, 4 key heads.
inline std::vector<AttentionSpec> plain_mixing_specs() {
  AttentionSpec convolving = small_spec(8, 4, 64), mixing = convolving;
  convolving.multi_token = {.before = {6, 11}, .after = {6, 11}};
  mixing.head_mix = {HeadMixSpec::Kind::full, HeadMixSpec::Kind::full, 0};
  AttentionSpec both = convolving;
  both.head_mix = mixing.head_mix;
  return {convolving, mixing, both};
}

/// Kernels and mixes near the identity, as trained ones are.
inline AttentionInputs near_identity(const AttentionSpec& spec, AttentionInputs in) {
  for (at::Tensor* x : {&in.tensors.kernel_before_hqk, &in.tensors.kernel_after_hqk}) {
    if (!x->defined()) continue;
    x->mul_(0.25).add_(start_kernel(KernelStart::identity, 0.0, spec.heads, {6, 11}));
  }
  for (at::Tensor* x : {&in.tensors.mix_before_noi, &in.tensors.mix_after_nio})
    if (x->defined()) x->mul_(0.16).add_(at::eye(spec.heads, at::kDouble));
  return in;
}

/// Stages 3 to 9 as the official code computes them: every map rounded to bfloat16 after each
/// operation (spec 3.2), causal.
inline at::Tensor plain_mixing(const AttentionSpec& spec, const AttentionInputs& in) {
  const int64_t repeats = spec.heads / spec.kv_heads, t = in.q.size(2);
  const auto repeated = [&](const at::Tensor& x) { return x.repeat_interleave(repeats, 1); };
  const at::Tensor hidden = at::ones({t, t}, at::kBool).triu(1);
  const auto convolved = [&](const at::Tensor& x, const at::Tensor& kernel_hqk) {
    if (!kernel_hqk.defined()) return x;
    const int64_t older = (kernel_hqk.size(2) - 1) / 2, newer = kernel_hqk.size(2) / 2;
    const at::Tensor padded =
        at::constant_pad_nd(x.masked_fill(hidden, 0.0), {older, newer, kernel_hqk.size(1) - 1, 0});
    // Sums in float32 and one rounding, which is more exact than what the code has.
    const std::vector<int64_t> one{1, 1}, none{0, 0};
    return at::conv2d(padded.to(at::kFloat), kernel_hqk.unsqueeze(1).to(at::kFloat), {}, one, none,
                      one, spec.heads)
        .to(at::kBFloat16);
  };
  at::Tensor x = at::matmul(in.q, repeated(in.k).transpose(2, 3)) * spec.logit_scale();
  x = convolved(x, in.tensors.kernel_before_hqk);
  if (in.tensors.mix_before_noi.defined()) x = mix_logits(x, in.tensors.mix_before_noi);
  x = at::softmax(x.to(at::kFloat).masked_fill(hidden, -1e30), -1).to(at::kBFloat16);
  x = convolved(x, in.tensors.kernel_after_hqk).masked_fill(hidden, 0.0);
  if (in.tensors.mix_after_nio.defined()) x = mix_weights(x, in.tensors.mix_after_nio);
  return at::matmul(x, repeated(in.v));
}

}  // namespace fovea::testing
