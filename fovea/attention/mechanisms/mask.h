// The mask rule: causal, window, sinks, strided and fixed patterns (stage 6; spec 4.7, 7.5).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fovea {

struct Mechanism;

const Mechanism& mask_mechanism();

}  // namespace fovea
