// Streams that hold the rows of one tensor of a call: StreamSpec::new_rows and set_rows for it.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "fovea/attention/call.h"
#include "fovea/attention/stream_spec.h"

namespace fovea {

/// Where a tensor has its tokens. The rows of a stream are [b, tokens, ...].
enum class TokenAxis {
  second,  ///< [b, tokens, ...]
  last,    ///< [b, tokens], one number a token: rows of one
  third    ///< [b, heads, tokens, ...]
};

at::Tensor to_rows(const at::Tensor& x, TokenAxis axis);
/// Its inverse.
at::Tensor from_rows(const at::Tensor& rows, TokenAxis axis);

/// new_rows and set_rows of q, k or v: `tensor` is a member of AttentionCall.
template <at::Tensor AttentionCall::*tensor>
at::Tensor new_rows_of(const AttentionCall& call, const CachedStreams& /*cache*/) {
  return to_rows(call.*tensor, TokenAxis::third);
}
template <at::Tensor AttentionCall::*tensor>
void set_rows_of(AttentionCall& call, const at::Tensor& rows) {
  call.*tensor = from_rows(rows, TokenAxis::third);
}

/// new_rows and set_rows of other tensors: `tensor` is a member of AttentionTensors.
template <at::Tensor AttentionTensors::*tensor, TokenAxis axis>
at::Tensor new_rows_of(const AttentionCall& call, const CachedStreams& /*cache*/) {
  return to_rows(call.tensors.*tensor, axis);
}
template <at::Tensor AttentionTensors::*tensor, TokenAxis axis>
void set_rows_of(AttentionCall& call, const at::Tensor& rows) {
  call.tensors.*tensor = from_rows(rows, axis);
}

}  // namespace fovea
