// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/stream_rows.h"

namespace fovea {

at::Tensor to_rows(const at::Tensor& x, TokenAxis axis) {
  switch (axis) {
    case TokenAxis::second:
      return x;
    case TokenAxis::last:
      return x.unsqueeze(-1);
    case TokenAxis::third:
      return x.transpose(1, 2);
  }
  return x;
}

at::Tensor from_rows(const at::Tensor& rows, TokenAxis axis) {
  return axis == TokenAxis::last ? rows.squeeze(-1) : to_rows(rows, axis);
}

}  // namespace fovea
