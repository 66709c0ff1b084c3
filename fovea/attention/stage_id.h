// StageId: the stages of attention in their order (stages.h is the table).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fovea {

enum class StageId {
  keys,
  scale,
  soft_cap,
  convolution_before,
  mix_before,
  gate_and_bias,
  allowed,
  softmax,
  convolution_after,
  mix_after,
  values
};

}  // namespace fovea
