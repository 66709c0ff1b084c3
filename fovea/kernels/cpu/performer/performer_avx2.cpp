// The loops of performer.h for avx2; its compiler flags stand in fovea/CMakeLists.txt.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/performer/performer_rows.h"

namespace fovea::kernels {

const PerformerTable& performer_avx2() { return kPerformerTable; }

}  // namespace fovea::kernels
