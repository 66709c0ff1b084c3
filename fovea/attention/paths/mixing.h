// The path of the mixing kernels, for stages that join queries, keys or heads (internal to
// attention/).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "fovea/attention/call.h"

namespace fovea {

/// Why the mixing kernels cannot compute a call. Looks at the spec and dtype; tensors of
/// stages may be missing.
std::optional<std::string> why_not_mixing(const AttentionCall& call);

}  // namespace fovea
