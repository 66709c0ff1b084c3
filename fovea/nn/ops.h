// The decoder's differentiable operations, each one autograd node with a fused CPU kernel
// (fovea/kernels/common/elementwise.h).
//
// Inputs on another device or of another dtype than float32 / bfloat16 take the same formulas
// through plain tensor operations. `x` is in the compute dtype, weights are float32 masters and get
// float32 gradients.
//
// Shape suffixes: r rows (any leading dimensions), c width, f feed-forward width, b batch, t
// tokens, h heads, d head size.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "fovea/attention/positions/rope.h"
#include "fovea/kernels/common/weight_format.h"

namespace fovea {

/// x W^T for the rows of all `weights` [out_i, in] stacked: [..., sum out_i]. One matrix product
/// for several projections. Packed weights read x as `activations` says.
at::Tensor stacked_linear(const at::Tensor& x_rc, const std::vector<at::Tensor>& weights,
                          kernels::Activations activations = kernels::Activations::exact);

/// RMSNorm over the last axis.
at::Tensor rms_norm(const at::Tensor& x_rc, const at::Tensor& weight_c, double eps);

/// (s, y) with s = x + delta and y = rms_norm(s): the residual stream and the input of the next
/// block.
std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x_rc, const at::Tensor& delta_rc,
                                               const at::Tensor& weight_c, double eps);

/// silu(gate) * up of [..., 2f] = gate ++ up (L-1).
at::Tensor swiglu(const at::Tensor& gate_up_rf);

/// Queries, keys and values of a stacked projection [b, t, (h + 2g) d]: q [b,h,t,d], k [b,g,t,d], v
/// [b,g,t,d]. q and k are normed per head where gains are defined (7.3), and rotated by `positions`
/// [b, t] (6.1).
struct Heads {
  at::Tensor q_bhtd, k_bgtd, v_bgtd;
  at::Tensor plain_q_bhtd, plain_k_bgtd;  ///< before the rotation, where routing reads them
};
Heads split_heads(const at::Tensor& qkv, int64_t heads, int64_t kv_heads, int64_t head_dim,
                  const at::Tensor& q_gain_d, const at::Tensor& k_gain_d, double eps,
                  const RopeTable& rope, const at::Tensor& positions_bt);

/// From the head's product to logits, with the term that is added to the loss (7.4).
struct LogitTransform {
  double scale = 1.0;   ///< multiplies the product
  double cap = 0.0;     ///< c of c tanh(z / c), after the scale; 0 = none
  double z_loss = 0.0;  ///< alpha of alpha (ln Z)^2 for every target

  bool plain() const { return scale == 1.0 && cap == 0.0; }
};

struct CrossEntropyResult {
  at::Tensor total;   ///< scalar: sum of the cross-entropy and z-loss over targets, times `scale`
  at::Tensor nll_r;   ///< of each row, unscaled and without z-loss; detached
  at::Tensor ln_z_r;  ///< ln of the softmax's sum of each row; detached
};

/// Over targets [r] >= 0; rows without one have 0 in nll_r and ln_z_r. Logits = hidden W^T exist
/// `chunk` rows at a time; the gradient is computed on the way, so the backward pass is a
/// multiplication.
CrossEntropyResult linear_cross_entropy(const at::Tensor& hidden_rc, const at::Tensor& weight_vc,
                                        const at::Tensor& targets_r, double scale, int64_t chunk,
                                        const LogitTransform& rule = {});

/// Counter-based dropout (seam 6): element e of x is kept as a function of (seed, site, e) alone.
at::Tensor counter_dropout(const at::Tensor& x, double p, uint64_t seed, uint64_t site);

}  // namespace fovea
