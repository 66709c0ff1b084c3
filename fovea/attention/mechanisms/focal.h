// Focal Attention: the temperature of the softmax, constant or learned (paper: Learning to Focus;
// spec 10, F-1 ... F-12).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "fovea/attention/specs/focal.h"

namespace fovea {

struct AttentionContext;

/// Parameters of a learned temperature. `global` uses the bias alone.
struct TemperatureParameters {
  at::Tensor weight_c;  ///< w_tau, [width]; starts at 0
  at::Tensor bias;      ///< b, scalar []; F-3: starts inside the bounds (clip) or at 0 (sigmoid)
};

/// The start value of the bias for head width d (F-3): inside the bounds; 0 for `sigmoid`.
double initial_temperature_bias(const TemperatureSpec& spec, int64_t head_dim);

/// State of the prefix mean between calls (decode): running sum of x.w and number of tokens per
/// sequence of the batch.
struct TemperatureState {
  at::Tensor sum_b;    ///< float64 [b]
  at::Tensor count_b;  ///< int64 [b]
};

/// tau of every row, [b, t] float32 (float64 for float64 input), and how many rows the bounds
/// clipped.
struct TemperatureRows {
  at::Tensor tau_bt;
  at::Tensor clipped_share;  ///< scalar, share of rows at or outside the bounds (0 for sigmoid)
  at::Tensor sums_bt;  ///< `prefix`: running sum of x.w up to every row, float64, without gradient
};

/// tau from the layer's normed input x [b, t, width] (F-7). Documents (runs of equal labels) of
/// `context` limit the means (F-2, F-11). With `state` (prefix form, one document a row) the call
/// continues earlier ones and advances the state (F-12). `sequence` with state throws
/// UnsupportedError.
TemperatureRows temperature_rows(const TemperatureSpec& spec, int64_t head_dim,
                                 const TemperatureParameters& parameters, const at::Tensor& x_btc,
                                 const AttentionContext& context,
                                 TemperatureState* state = nullptr);

}  // namespace fovea
