// StreamingLLM: keys, checks, places in the cache.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/specs/streaming.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "fovea/attention/call.h"
#include "fovea/attention/mechanism.h"
#include "fovea/attention/mechanisms/streaming_rule.h"
#include "fovea/attention/stage_rows.h"
#include "fovea/attention/visible_keys.h"
#include "fovea/base/error.h"

namespace fovea {
void StreamingSpec::describe(FieldVisitor& v) {
  v.integer({"recent", "most recent keys that stay, self included; 0 = off (spec 4.6)",
             ranges::kPositionCounts},
            recent);
  v.integer({"start", "first positions of the document that stay", ranges::kPositionCounts}, start);
}

void StreamingSpec::check() const {
  require<ConfigError>(recent >= 0 && start >= 0, kSpecPlace,
                       "streaming.recent and streaming.start must not be negative; got {} and {}",
                       recent, start);
  require<ConfigError>(active() || *this == StreamingSpec{}, kSpecPlace,
                       "streaming.start acts only with streaming.recent above 0; got {}", start);
}

at::Tensor places_in_cache(const StreamingSpec& spec, const at::Tensor& positions) {
  return positions.clamp_max(spec.start + spec.recent - 1);
}

at::Tensor start_keys(const StreamingSpec& spec, const Places& places) {
  return (places.key_positions_bs < spec.start).unsqueeze(1).unsqueeze(1);
}

namespace {

std::vector<StageUse> streaming_uses(const AttentionSpec& spec) {
  const StreamingSpec& s = spec.streaming;
  if (!s.active()) return {};
  return {{.stage = StageId::allowed,
           .setting = fmt::format("streaming {} + {}", s.start, s.recent),
           .why_not_sdpa = "positions inside the cache are two queries for one row"}};
}

// Start keys are read from the query's place in the cache.
at::Tensor with_start_scores(const at::Tensor& logits, const StageRows& rows) {
  const at::Tensor& q = rows.call.tensors.start_q_bhtd;
  if (!q.defined()) return logits;
  const at::Tensor starts = start_keys(rows.call.spec.streaming, rows.places);
  return at::where(starts, rows.scores(q, rows.call.k), logits);
}

at::Tensor streaming_visible(const at::Tensor& allowed, const StageRows& rows) {
  const StreamingSpec& spec = rows.call.spec.streaming;
  return spec.active() ? allowed.logical_and(allowed_mask(pairs_of(spec), rows.places)) : allowed;
}

// To start keys from the query's place in the cache.
at::Tensor streaming_distances(const AttentionSpec& spec, const Places& places) {
  if (!spec.streaming.active()) return {};
  Places cached = places;
  cached.query_positions_bt = places_in_cache(spec.streaming, places.query_positions_bt);
  return at::where(start_keys(spec.streaming, places).squeeze(1), distances(cached),
                   distances(places));
}

constexpr KeyPattern kStreamingPattern = {
    .to_mask =
        [](AttentionSpec& spec, bool plain) {
          if (!plain && spec.streaming.start > 0) return;
          spec.mask = pairs_of(spec.streaming);
          spec.streaming = {};
        },
    .visible_keys =
        [](const AttentionSpec& spec, int64_t query, int64_t length) {
          return static_cast<double>(visible_keys(pairs_of(spec.streaming), query, length));
        },
    .window_reach =
        [](const AttentionSpec& spec) { return window_reach(pairs_of(spec.streaming)); },
    .kept_keys = [](const AttentionSpec& spec) -> KeptKeys {
      return {.first = spec.streaming.start, .last = spec.streaming.recent};
    }};

constexpr StageFormula kStreamingFormulas[] = {
    {.stage = StageId::scale, .apply = with_start_scores}};

constexpr TensorSlot kStreamingTensors[] = {
    {.name = "start_queries",
     .member = &AttentionTensors::start_q_bhtd,
     .sizes = [](const AttentionSpec& spec, const CallShape& shape) -> Sizes {
       if (!spec.streaming.active()) return std::nullopt;
       return std::vector<int64_t>{shape.batch, spec.heads, shape.queries, spec.head_dim};
     },
     .setting =
         [](const AttentionSpec& spec) {
           return fmt::format("streaming.recent {}", spec.streaming.recent);
         },
     .token_axis = 2,
     .head_axis = 1},
};

constexpr MechanismSetting kStreamingSettings[] = {
    {"StreamingLLM", [](AttentionSpec& s) { s.streaming = {.recent = 512, .start = 4}; }},
};

}  // namespace

const Mechanism& streaming_mechanism() {
  static constexpr Mechanism mechanism{
      .name = "streaming",
      .describe =
          [](AttentionSpec& spec, FieldVisitor& v) {
            v.nested({"streaming", "stage 6: the first and the most recent tokens (spec 4.6)"},
                     spec.streaming);
          },
      .check = [](const AttentionSpec& spec) { spec.streaming.check(); },
      .uses = streaming_uses,
      .formulas = kStreamingFormulas,
      .visible = streaming_visible,
      .tensors = kStreamingTensors,
      .token = TokenForm::kernels,
      .settings = kStreamingSettings,
      .remove = [](AttentionSpec& spec) { spec.streaming = {}; },
      .key_rule = [](const AttentionSpec& spec) -> std::optional<KeyRule> {
        return spec.streaming.active() ? std::optional(KeyRule::parts) : std::nullopt;
      },
      .plain_heads = true,
      .pattern = &kStreamingPattern,
      .distances = streaming_distances,
  };
  return mechanism;
}

}  // namespace fovea
