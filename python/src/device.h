// The kernels of a tensor's device: those of the CPU, or the library of CUDA kernels beside this
// one, which takes memory and streams of torch and is loaded when the first tensor on a GPU comes.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "call.h"
#include "fovea/kernels/backend.h"
#include "pairs.h"

namespace fovea::python {

/// UnsupportedError where there are no CUDA kernels. The current device is that of q.
const kernels::Backend& backend_for(const Tensor& q);

/// Why the CUDA kernels cannot compute a call, or nothing. A question: tensors without numbers
/// serve.
std::optional<std::string> why_not_cuda(const Call& call, const Pairs& pairs,
                                        const kernels::Backend& backend);

/// The same of the current device for a call whose tensors are of the device `meta`: documents
/// stand for two of half the keys, positions count from the start of each. Empty: it computes it.
std::string answer(Call call);

}  // namespace fovea::python
