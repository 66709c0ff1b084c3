// Key and tensor of the sink logit.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/sink_logit.h"

#include <fmt/format.h>

#include "fovea/attention/call.h"
#include "fovea/attention/mechanism.h"

namespace fovea {
namespace {

std::vector<StageUse> sink_logit_uses(const AttentionSpec& spec) {
  if (!spec.sink_logit) return {};
  return {{.stage = StageId::softmax, .setting = "sink_logit"}};
}

constexpr TensorSlot kSinkLogitTensors[] = {
    {.name = "sink_logit",
     .member = &AttentionTensors::sink_logit_h,
     .sizes = [](const AttentionSpec& spec, const CallShape&) -> Sizes {
       if (!spec.sink_logit) return std::nullopt;
       return std::vector{spec.heads};
     },
     .setting =
         [](const AttentionSpec& spec) { return fmt::format("sink_logit {}", spec.sink_logit); },
     .head_axis = 0}};

constexpr MechanismSetting kSinkLogitSettings[] = {
    {"sink logit", [](AttentionSpec& s) { s.sink_logit = true; }},
};

}  // namespace

const Mechanism& sink_logit_mechanism() {
  static constexpr Mechanism mechanism{
      .name = "sink_logit",
      .describe =
          [](AttentionSpec& spec, FieldVisitor& v) {
            v.boolean(
                {"sink_logit",
                 "stage 7: a learned logit per head joins the softmax with value 0 (spec 7.5)"},
                spec.sink_logit);
          },
      .uses = sink_logit_uses,
      .tensors = kSinkLogitTensors,
      .token = TokenForm::decoder,
      .settings = kSinkLogitSettings,
      .remove = [](AttentionSpec& spec) { spec.sink_logit = false; },
  };
  return mechanism;
}

}  // namespace fovea
