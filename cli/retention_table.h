// The table of `fovea eval --retention` and `fovea retrofit`.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/eval/retention.h"

namespace fovea::cli {

/// Prints a row for full attention, the soft gate, and per number of groups a token three rows.
void print_retention(const RetentionResult& result);

}  // namespace fovea::cli
