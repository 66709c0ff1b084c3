// The table of `fovea eval --retention` and `fovea retrofit`.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/eval/retention.h"

namespace fovea::cli {

/// Prints rows for full attention and the soft gate. For each number of groups a token, rows follow
/// for the groups, a window and a strided mask of as many pairs, random groups, and groups by a
/// hash.
void print_retention(const RetentionResult& result);

}  // namespace fovea::cli
