// Scoring a text as a generator reads it: one pass through the cache, as long as the text is.
//
// score_text() starts a new window every so many tokens; this stream never starts anew. Attention
// with a bounded cache (StreamingLLM, spec 4.6; windows; Longformer; Performer) reads a text of any
// length in constant memory; the parts show whether a model still predicts there.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <vector>

#include "fovea/nn/transformer.h"

namespace fovea {

struct StreamOptions {
  int64_t part = 100'000;  ///< tokens that a line of the result covers
  int64_t chunk = 256;     ///< tokens that a pass reads
};

/// Counts of one part of the stream.
struct StreamPart {
  int64_t end = 0;     ///< tokens read so far
  int64_t tokens = 0;  ///< predicted in this part
  double nll = 0;      ///< nats
  double seconds = 0;
  int64_t cache_bytes = 0;     ///< at its end
  int64_t resident_bytes = 0;  ///< of the process, at its end

  double perplexity() const;
};

struct StreamScore {
  std::vector<StreamPart> parts;

  double perplexity() const;  ///< of all
  nlohmann::ordered_json to_json() const;
};

/// Every token but the first is predicted once, from all before it that the cache still holds.
/// InputError for fewer than two tokens; ConfigError for a part or chunk below 1;
/// UnsupportedError where the model cannot decode; as make_decode_state() for its memory.
/// `progress(done, total)` in tokens; it may throw.
StreamScore score_stream(const Transformer& model, std::span<const int32_t> tokens,
                         const StreamOptions& options = {},
                         const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace fovea
