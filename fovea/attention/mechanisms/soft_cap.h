// Soft-cap of the logits: s = c tanh(s / c) (stage 2; spec 7.4).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fovea {

struct Mechanism;

const Mechanism& soft_cap_mechanism();

}  // namespace fovea
