// The streams of a layer's cache. Keys and values are there by default; mechanisms add and remove
// streams (Mechanism::add_streams).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <vector>

#include "fovea/attention/spec.h"
#include "fovea/attention/stream_spec.h"

namespace fovea {

/// The streams that `spec` needs.
std::vector<StreamSpec> cache_streams(const AttentionSpec& spec, at::ScalarType dtype);

/// Tail rows that a stream holds at rest.
int64_t resting_rows(const StreamSpec& spec, int64_t capacity);

/// [batch, rows, row_shape...].
std::vector<int64_t> rows_shape(const StreamSpec& spec, int64_t batch, int64_t rows);

/// Bytes of HugePages that a cache of these streams takes.
int64_t cache_bytes(const std::vector<StreamSpec>& streams, int64_t batch, int64_t capacity);

}  // namespace fovea
