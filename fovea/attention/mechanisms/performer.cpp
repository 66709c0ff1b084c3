// Performer: keys and checks.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/performer.h"

#include <fmt/format.h>

#include "fovea/attention/call.h"
#include "fovea/attention/mechanisms/mechanism.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

constexpr const char* kWhere = "attention spec";
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
  require<ConfigError>(features >= 0 && features <= kMostFeatures, kWhere,
                       "performer.features must be 0 (off) to {}; got {}", kMostFeatures, features);
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

void check(const AttentionSpec& spec) { spec.performer.check(); }

std::vector<StageUse> uses(const AttentionSpec& spec) {
  if (!spec.performer.active()) return {};
  return {{.stage = StageId::softmax,
           .setting = fmt::format("performer {}", spec.performer.features),
           .why_not_sdpa = "random features take the place of the softmax",
           .why_not_kernels = "random features take the place of the softmax"}};
}

constexpr TensorSlot kTensors[] = {
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
      .check = check,
      .uses = uses,
      .tensors = kTensors,
  };
  return mechanism;
}

}  // namespace fovea
