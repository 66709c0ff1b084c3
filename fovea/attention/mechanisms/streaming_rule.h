// StreamingLLM's settings applied to a call: allowed pairs, and the position from which a query
// reads start keys (internal to attention/; spec 4.6).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "fovea/attention/spec.h"

namespace fovea {

struct Places;  // places.h

/// The mask rule of the same pairs; distances to start keys are not part of it.
inline MaskRule pairs_of(const StreamingSpec& spec) {
  return {.window = spec.recent, .sinks = spec.start};
}

/// Where queries at int64 `positions` stand for start keys: min(i, start + recent - 1).
at::Tensor places_in_cache(const StreamingSpec& spec, const at::Tensor& positions);

/// Whether keys are start keys, bool [b or 1, 1, 1, s].
at::Tensor start_keys(const StreamingSpec& spec, const Places& places);

}  // namespace fovea
