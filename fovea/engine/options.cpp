// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/cache/cache.h"
#include "fovea/base/error.h"
#include "fovea/config/reader.h"
#include "fovea/engine/engine.h"

namespace fovea {
namespace {

constexpr Range kBytes{.least = 0, .most = 1e15};
constexpr Range kPrefixBytes{.least = -1, .most = 1e15};
constexpr Range kSequences{.least = 1, .most = EngineOptions::kMostSequences};
constexpr Range kQueue{.least = 1, .most = 1e6};
constexpr Range kPause{.least = 0, .most = 1e6};
constexpr Range kChunk{.least = AttentionCache::kPage, .most = 65536};

}  // namespace

void EngineOptions::describe(FieldVisitor& v) {
  v.integer({"context", "positions of prompt and text; 0 = the model's trained length",
             ranges::kPositionCounts},
            context);
  v.integer({"sequences", "texts written at once", kSequences}, sequences);
  v.integer({"queue", "requests that may wait; more are refused", kQueue}, queue);
  v.integer({"chunk", "tokens of a prompt read between two steps; a multiple of 128", kChunk},
            chunk);
  v.integer({"pause_ms", "milliseconds that texts wait for prompts between two tokens", kPause},
            pause_ms);
  v.integer({"cache_bytes",
             "bytes for caches of texts and prefixes; 0 = half of the memory that is left", kBytes},
            cache_bytes);
  v.integer(
      {"prefix_bytes", "of these, bytes for beginnings of earlier prompts; 0 = none, -1 = half",
       kPrefixBytes},
      prefix_bytes);
}

void EngineOptions::check() const {
  check_fields("engine", *this);
  require<ConfigError>(chunk % AttentionCache::kPage == 0, "engine",
                       "'chunk' must be a multiple of {}; got {}", AttentionCache::kPage, chunk);
}

}  // namespace fovea
