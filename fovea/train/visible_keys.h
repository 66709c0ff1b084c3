// How many keys a query sees under a mask, without looking at each.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/kernels/common/mask_rule.h"

namespace fovea {

/// Keys j of 0 ... length - 1 with allowed(rule, query, j), one document; a few operations at any
/// length.
int64_t visible_keys(const MaskRule& rule, int64_t query, int64_t length);

}  // namespace fovea
