// Keys, checks and formula of the soft-cap.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/soft_cap.h"

#include <ATen/ATen.h>

#include <cmath>

#include "fovea/attention/mechanism.h"
#include "fovea/attention/stage_rows.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

void check_soft_cap(const AttentionSpec& s) {
  require<ConfigError>(std::isfinite(s.soft_cap) && s.soft_cap >= 0.0, kSpecPlace,
                       "soft_cap must be 0 (off) or positive; got {}", s.soft_cap);
}

std::vector<StageUse> soft_cap_uses(const AttentionSpec& spec) {
  if (spec.soft_cap <= 0.0) return {};
  return {{.stage = StageId::soft_cap,
           .setting = fmt::format("soft_cap {}", spec.soft_cap),
           .why_not_sdpa = "soft_cap bounds the logits before the softmax"}};
}

at::Tensor capped(const at::Tensor& logits, const StageRows& rows) {
  const double cap = rows.call.spec.soft_cap;
  return cap > 0.0 ? at::tanh(logits / cap) * cap : logits;
}

constexpr StageFormula kSoftCapFormulas[] = {{.stage = StageId::soft_cap, .apply = capped}};

constexpr MechanismSetting kSoftCapSettings[] = {
    {"soft-cap", [](AttentionSpec& s) { s.soft_cap = 50.0; }},
};

}  // namespace

const Mechanism& soft_cap_mechanism() {
  static constexpr Mechanism mechanism{
      .name = "soft_cap",
      .describe =
          [](AttentionSpec& spec, FieldVisitor& v) {
            v.real({"soft_cap", "stage 2: c of c tanh(s/c); 0 = off", ranges::kNotNegative},
                   spec.soft_cap);
          },
      .check = check_soft_cap,
      .uses = soft_cap_uses,
      .formulas = kSoftCapFormulas,
      .token = TokenForm::decoder,
      .settings = kSoftCapSettings};
  return mechanism;
}

}  // namespace fovea
