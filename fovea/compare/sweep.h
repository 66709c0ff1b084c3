// A grid over recipe keys, as variants of a comparison: the key `compare.sweep`.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/config/node.h"

namespace fovea {

/// Takes `sweep` (recipe keys, each with a list of values) out of the map of `compare`. Replaces
/// every variant by one for each combination of values, named like "focal+layers-4+width-128". Each
/// has the variant's own changes and those of the combination. Without variants the combinations
/// stand alone. All variants that come of one share its name as their `family`, the curve that they
/// form. A combination is in the order of the file, the last key varying fastest. ConfigError with
/// the place for what is not a map of lists, an empty list, or more than 256 variants.
void expand_sweep(ConfigNode& compare);

}  // namespace fovea
