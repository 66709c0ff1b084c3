// A bundle of mixed heads, slab of rows by slab of rows: memory linear in the text.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/kernels/cuda/mixing/launches.h"

namespace fovea::kernels::cuda::mixing {

/// out and lse of the bundle's heads; `convolved`: the problem has a kernel of queries and keys.
void bundle_forward(const HeadSize& size, const Problem& p, const Bundle& u, bool convolved,
                    Stream stream);

/// dq, and the sums of dk, dv, the matrices and the kernels. Reads lse and the bundle's exponent.
void bundle_backward(const HeadSize& size, const Problem& p, const Bundle& u, bool convolved,
                     Stream stream);

}  // namespace fovea::kernels::cuda::mixing
