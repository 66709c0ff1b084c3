// Sink logit: a learned logit per head joins the softmax with value 0 (stage 7; spec 7.5).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fovea {

struct Mechanism;

const Mechanism& sink_logit_mechanism();

}  // namespace fovea
