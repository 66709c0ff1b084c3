// Performer: keys and checks.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/specs/performer.h"

#include <fmt/format.h>

#include <utility>

#include "fovea/attention/call.h"
#include "fovea/attention/mechanism.h"
#include "fovea/attention/mechanisms/performer_features.h"
#include "fovea/attention/stream_spec.h"
#include "fovea/base/error.h"
#include "fovea/kernels/common/performer.h"

namespace fovea {
namespace {

constexpr int64_t kMostFeatures = 65536;

}  // namespace

void PerformerSpec::describe(FieldVisitor& v) {
  v.integer({"features", "m: random features of a head; 0 = off (spec 4.2)", {0, kMostFeatures}},
            features);
  v.choice({"scaling", "lengths of the directions: of Gaussian vectors, or sqrt(d)"}, scaling);
  v.choice({"stabiliser", "running maximum (causal), or global (to reproduce, with epsilon)"},
           stabiliser);
  v.real({"epsilon", "added to every feature; 0 is unbiased", ranges::kNotNegative}, epsilon);
}

void PerformerSpec::check() const {
  require<ConfigError>(features >= 0 && features <= kMostFeatures, kSpecPlace,
                       "performer.features must be 0 (off) to {}; got {}", kMostFeatures, features);
  require<ConfigError>(active() || *this == PerformerSpec{}, kSpecPlace,
                       "performer.scaling, stabiliser and epsilon need performer.features above 0");
  require<ConfigError>(epsilon >= 0.0, kSpecPlace, "performer.epsilon must be 0 or larger; got {}",
                       epsilon);
  require<UnsupportedError>(
      epsilon == 0.0 || stabiliser == Stabiliser::global, kSpecPlace,
      "performer.epsilon {} with stabiliser running is not defined (the result would depend on the "
      "order of the keys); set epsilon: 0, or stabiliser: global to reproduce published numbers",
      epsilon);
}

std::span<const std::string_view> enum_names(PerformerSpec::Scaling) {
  static constexpr std::string_view names[] = {"gaussian", "root"};
  return names;
}

std::span<const std::string_view> enum_names(PerformerSpec::Stabiliser) {
  static constexpr std::string_view names[] = {"running", "global"};
  return names;
}

namespace {

// The state behind the last token, in place of keys and values.
void add_streams_performer(const AttentionSpec& s, const StreamSpec& keys,
                           std::vector<StreamSpec>& all) {
  if (!s.performer.active()) return;
  require<UnsupportedError>(s.performer.epsilon == 0.0, "cache",
                            "performer.epsilon {} needs the whole text and has no decode (the "
                            "stabiliser of keys is taken from all of them); set epsilon: 0",
                            s.performer.epsilon);
  std::erase_if(all, [](const StreamSpec& stream) {
    return stream.name == stream::kKeys || stream.name == stream::kValues;
  });
  all.push_back({.name = stream::kFeatureSums,
                 .row_shape = {s.kv_heads, s.performer.features,
                               kernels::performer_state_width(s.value_width())},
                 .dtype = keys.dtype == at::kDouble ? at::kDouble : at::kFloat,
                 .keep_last = 2,  // what the next token needs is the row of this one
                 .state = true});
}

constexpr MechanismSetting kPerformerSettings[] = {
    {"Performer", [](AttentionSpec& s) { s.performer.features = 64; }},
};

std::vector<StageUse> performer_uses(const AttentionSpec& spec) {
  if (!spec.performer.active()) return {};
  return {{.stage = StageId::softmax,
           .setting = fmt::format("performer {}", spec.performer.features),
           .why_not_sdpa = "random features take the place of the softmax",
           .why_not_kernels = "random features take the place of the softmax"}};
}

constexpr TensorSlot kPerformerTensors[] = {
    {.name = "features",
     .member = &AttentionTensors::features_md,
     .sizes = [](const AttentionSpec& spec, const CallShape& /*shape*/) -> Sizes {
       if (!spec.performer.active()) return std::nullopt;
       return std::vector<int64_t>{spec.performer.features, spec.head_dim};
     },
     .setting =
         [](const AttentionSpec& spec) {
           return fmt::format("performer.features {}", spec.performer.features);
         }},
};

}  // namespace

const Mechanism& performer_mechanism() {
  static constexpr Mechanism mechanism{
      .name = "performer",
      .describe =
          [](AttentionSpec& spec, FieldVisitor& v) {
            v.nested({"performer", "stage 7: random features for the softmax (spec 4.2)"},
                     spec.performer);
          },
      .check = [](const AttentionSpec& spec) { spec.performer.check(); },
      .uses = performer_uses,
      .scores = performer_logits,
      .tensors = kPerformerTensors,
      .add_streams = add_streams_performer,
      .settings = kPerformerSettings,
      .remove = [](AttentionSpec& spec) { spec.performer = {}; },
      .key_rule = [](const AttentionSpec& spec) -> std::optional<KeyRule> {
        return spec.performer.active() ? std::optional(KeyRule::sums) : std::nullopt;
      },
  };
  return mechanism;
}

}  // namespace fovea
