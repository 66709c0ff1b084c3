// StreamingLLM: keys, checks, places in the cache.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/streaming.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "fovea/attention/call.h"
#include "fovea/attention/mechanisms/mechanism.h"
#include "fovea/attention/mechanisms/streaming_rule.h"
#include "fovea/attention/places.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {}  // namespace

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

at::Tensor counted_distances(const AttentionSpec& spec, const Places& places) {
  if (!spec.streaming.active()) return distances(places);
  Places cached = places;
  cached.query_positions_bt = places_in_cache(spec.streaming, places.query_positions_bt);
  return at::where(start_keys(spec.streaming, places).squeeze(1), distances(cached),
                   distances(places));
}

namespace {

void check_streaming(const AttentionSpec& spec) {
  spec.streaming.check();
  if (!spec.streaming.active()) return;
  check_only_key_rule(spec, "streaming");
  require<UnsupportedError>(!spec.routing.active() && !spec.blocks.active(), kSpecPlace,
                            "streaming with routing or blocks is not defined (two rules for "
                            "distant pairs); remove one of them");
  require<UnsupportedError>(spec.multi_token == MultiTokenSpec{}, kSpecPlace,
                            "streaming with multi_token is not defined (neighbours of the border "
                            "between start and recent keys change with every token); remove one of "
                            "them");
  require<UnsupportedError>(
      !spec.sparq.active() && !spec.magic_pig.active() && !spec.performer.active(), kSpecPlace,
      "streaming with sparq, magic_pig or performer is not defined (two rules for distant pairs); "
      "remove "
      "one of them");
}

std::vector<StageUse> streaming_uses(const AttentionSpec& spec) {
  const StreamingSpec& s = spec.streaming;
  if (!s.active()) return {};
  return {{.stage = StageId::allowed,
           .setting = fmt::format("streaming {} + {}", s.start, s.recent),
           .why_not_sdpa = "positions inside the cache are two queries for one row"}};
}

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
     .token_axis = 2},
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
      .check = check_streaming,
      .uses = streaming_uses,
      .tensors = kStreamingTensors,
      .token = TokenForm::kernels,
      .settings = kStreamingSettings,
      .remove = [](AttentionSpec& spec) { spec.streaming = {}; },
      .key_rule = [](const AttentionSpec& spec) -> std::optional<KeyRule> {
        return spec.streaming.active() ? std::optional(KeyRule::parts) : std::nullopt;
      },
  };
  return mechanism;
}

}  // namespace fovea
