// Key, check and factors of dropout.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/dropout.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "fovea/attention/call.h"
#include "fovea/attention/mechanism.h"
#include "fovea/attention/stage_rows.h"
#include "fovea/base/error.h"
#include "fovea/kernels/common/dropout.h"

namespace fovea {
namespace {

void check_dropout(const AttentionSpec& s) {
  require<ConfigError>(s.dropout >= 0.0 && s.dropout < 1.0, kSpecPlace,
                       "dropout must be in [0, 1); got {}", s.dropout);
}

std::vector<StageUse> dropout_uses(const AttentionSpec& spec) {
  if (spec.dropout <= 0.0) return {};
  return {{.stage = StageId::values, .setting = fmt::format("dropout {}", spec.dropout)}};
}

}  // namespace

at::Tensor dropout_factors(const AttentionSpec& spec, const AttentionContext& context,
                           int64_t first_row, int64_t first_key, const at::Tensor& weights) {
  const int64_t heads = weights.size(1), rows = weights.size(2), keys = weights.size(3);
  at::Tensor factors = at::empty(weights.sizes(), at::kFloat);
  float* data = factors.data_ptr<float>();
  const float p = static_cast<float>(spec.dropout);
  at::parallel_for(0, weights.size(0) * heads * rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t i = row % rows, h = row / rows % heads, b = row / rows / heads;
      const DropoutStream stream{.seed = mix_seed(context.dropout_seed, static_cast<uint64_t>(b)),
                                 .layer = static_cast<uint32_t>(context.layer),
                                 .head = static_cast<uint32_t>(h)};
      for (int64_t j = 0; j < keys; ++j) {
        data[row * keys + j] = dropout_keeps(stream, p, first_row + i, first_key + j) ? 1.0f : 0.0f;
      }
    }
  });
  return factors.to(weights.options()) / (1.0 - spec.dropout);
}

namespace {

constexpr StageFormula kDropoutFormulas[] = {
    {.stage = StageId::values, .apply = [](const at::Tensor& weights, const StageRows& rows) {
       const AttentionCall& call = rows.call;
       if (!call.drops_weights()) return weights;
       return weights *
              dropout_factors(call.spec, call.context, rows.first_row(), rows.keys.begin, weights);
     }}};

}  // namespace

const Mechanism& dropout_mechanism() {
  static constexpr Mechanism mechanism{
      .name = "dropout",
      .describe =
          [](AttentionSpec& spec, FieldVisitor& v) {
            v.real({"dropout", "probability of dropping an attention weight in training",
                    ranges::kBelowOne},
                   spec.dropout);
          },
      .check = check_dropout,
      .uses = dropout_uses,
      .formulas = kDropoutFormulas,
      .token = TokenForm::decoder};
  return mechanism;
}

}  // namespace fovea
