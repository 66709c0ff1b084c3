// NaN and infinity stay with the pairs that see them, in plain tensor operations (spec 9.10; the
// kernels have a form of their own).
//
// A pair that is not seen has weight 0 and gradient 0, but 0 times NaN is NaN. In the products of
// this file a pair's 0 gives 0, whatever the other factor is.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace fovea {

/// Whether a tensor holds no NaN and no infinity (a sum that overflows counts as one). Only tensors
/// of the CPU are asked, others are taken for finite: the answer would wait for the device.
bool all_finite(const at::Tensor& x);

/// Scores of pairs q k^T [..., t, s]; gradients of pairs that are 0 reach neither q nor k.
/// Differentiable.
at::Tensor pair_scores(const at::Tensor& q, const at::Tensor& k);

/// weights [..., t, s] times values [..., s, e]; values of weight 0 do not count, nor do gradients
/// of their rows. Differentiable.
at::Tensor weigh_values(const at::Tensor& weights, const at::Tensor& values);

}  // namespace fovea
