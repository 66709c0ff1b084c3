// ALiBi slopes, T5 buckets, and the bias by distance that kernels read.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/positions/bias.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "fovea/attention/call.h"
#include "fovea/attention/mechanism.h"
#include "fovea/attention/places.h"
#include "fovea/attention/stage_rows.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

// The bucket of every entry of the bias by distance: entry 0 is distance 0 (causal) or
// -max_distance.
at::Tensor buckets_by_distance(const AttentionSpec& spec) {
  const int64_t last = spec.bias.max_distance, first = spec.mask.causal ? 0 : -last;
  return t5_buckets(at::arange(first, last + 1, at::kLong), spec.bias.buckets, last,
                    spec.mask.causal);
}

}  // namespace

std::vector<double> alibi_slopes(int64_t heads) {
  const auto geometric = [](int64_t count, int64_t index) {
    return std::exp2(-8.0 * static_cast<double>(index) / static_cast<double>(count));
  };
  int64_t power = 1;
  while (2 * power <= heads) power *= 2;
  std::vector<double> slopes;
  for (int64_t h = 1; h <= power; ++h) slopes.push_back(geometric(power, h));
  for (int64_t odd = 1; std::ssize(slopes) < heads; odd += 2)
    slopes.push_back(geometric(2 * power, odd));
  return slopes;
}

at::Tensor t5_buckets(const at::Tensor& distance, int64_t buckets, int64_t max_distance,
                      bool causal) {
  const int64_t count = causal ? buckets : buckets / 2;
  const int64_t exact = count / 2;
  std::vector<int64_t> bucket_of(static_cast<size_t>(max_distance) + 1);
  for (int64_t n = 0; n <= max_distance; ++n) {
    const double ratio =
        std::log(static_cast<double>(std::max<int64_t>(n, 1)) / static_cast<double>(exact)) /
        std::log(static_cast<double>(max_distance) / static_cast<double>(exact));
    bucket_of[n] =
        n < exact
            ? n
            : std::min(exact + static_cast<int64_t>(static_cast<double>(count - exact) * ratio),
                       count - 1);
  }
  const at::Tensor table = at::tensor(bucket_of, at::kLong).to(distance.device());
  const at::Tensor n =
      causal ? distance.clamp(0, max_distance) : distance.abs().clamp(0, max_distance);
  const at::Tensor bucket = table.index({n});
  return causal ? bucket : bucket + (distance < 0).to(at::kLong) * count;
}

at::Tensor position_bias(const AttentionSpec& spec, const AttentionTensors& tensors,
                         const Places& places, at::ScalarType dtype) {
  switch (spec.bias.kind) {
    case BiasSpec::Kind::none:
      return {};
    case BiasSpec::Kind::alibi: {
      const at::Tensor distance = counted_distances(spec, places).to(dtype).unsqueeze(1);
      const at::Tensor slopes =
          at::tensor(alibi_slopes(spec.heads), at::kDouble).to(distance.options());
      return distance * -slopes.reshape({1, spec.heads, 1, 1});
    }
    case BiasSpec::Kind::t5: {
      const at::Tensor bucket_bts = t5_buckets(counted_distances(spec, places), spec.bias.buckets,
                                               spec.bias.max_distance, spec.mask.causal);
      return at::embedding(tensors.bias_table.to(dtype), bucket_bts).permute({0, 3, 1, 2});
    }
  }
  return {};
}

at::Tensor bias_by_distance(const AttentionSpec& spec, const at::Tensor& table) {
  return table.to(at::kFloat)
      .index_select(0, buckets_by_distance(spec).to(table.device()))
      .t()
      .contiguous();
}

at::Tensor bias_table_gradient(const AttentionSpec& spec, const at::Tensor& dbias_hn) {
  return at::zeros({spec.bias.buckets, dbias_hn.size(0)}, dbias_hn.options())
      .index_add(0, buckets_by_distance(spec).to(dbias_hn.device()), dbias_hn.t());
}

namespace {

void check(const AttentionSpec& s) {
  if (s.bias.kind != BiasSpec::Kind::t5) return;
  const int64_t per_direction = s.mask.causal ? s.bias.buckets : s.bias.buckets / 2;
  require<ConfigError>(per_direction >= 2 && per_direction % 2 == 0, kSpecPlace,
                       "bias.buckets must be even (a multiple of 4 without causal); got {}",
                       s.bias.buckets);
  require<ConfigError>(s.bias.max_distance > per_direction / 2, kSpecPlace,
                       "bias.max_distance must exceed the {} exact buckets; got {}",
                       per_direction / 2, s.bias.max_distance);
}

std::vector<StageUse> uses(const AttentionSpec& spec) {
  if (spec.bias.kind == BiasSpec::Kind::none) return {};
  StageUse use{.stage = StageId::gate_and_bias, .setting = std::string(enum_name(spec.bias.kind))};
  if (spec.bias.kind == BiasSpec::Kind::t5) use.why_not_sdpa = "the t5 table is a parameter";
  return {use};
}

constexpr StageFormula kFormulas[] = {
    {.stage = StageId::gate_and_bias, .apply = [](const at::Tensor& logits, const StageRows& rows) {
       const at::Tensor bias =
           position_bias(rows.call.spec, rows.call.tensors, rows.places, logits.scalar_type());
       return bias.defined() ? logits + bias : logits;
     }}};

constexpr TensorSlot kTensors[] = {
    {.name = "bias_table",
     .member = &AttentionTensors::bias_table,
     .sizes = [](const AttentionSpec& spec, const CallShape&) -> Sizes {
       if (!(spec.bias.kind == BiasSpec::Kind::t5)) return std::nullopt;
       return std::vector<int64_t>{spec.bias.buckets, spec.heads};
     },
     .setting =
         [](const AttentionSpec& spec) {
           return fmt::format("bias.kind {}", enum_name(spec.bias.kind));
         },
     .head_axis = 1},
};

constexpr MechanismSetting kSettings[] = {
    {"ALiBi", [](AttentionSpec& s) { s.bias.kind = BiasSpec::Kind::alibi; }},
    {"T5 bias", [](AttentionSpec& s) { s.bias.kind = BiasSpec::Kind::t5; }},
};

}  // namespace

void BiasSpec::describe(FieldVisitor& v) {
  v.choice({"kind", "additive position bias: none, alibi (spec 6.4), t5 (spec 6.3)"}, kind);
  v.integer({"buckets", "t5: rows of the table", {1, 1 << 20}}, buckets);
  v.integer({"max_distance",
             "t5: distances from here on share the last bucket",
             {1, ranges::kMostPositions}},
            max_distance);
}

std::span<const std::string_view> enum_names(BiasSpec::Kind) {
  static constexpr std::string_view names[] = {"none", "alibi", "t5"};
  return names;
}
const Mechanism& position_bias_mechanism() {
  static constexpr Mechanism mechanism{
      .name = "bias",
      .describe =
          [](AttentionSpec& spec, FieldVisitor& v) {
            v.nested({"bias", "stage 5: additive position bias"}, spec.bias);
          },
      .check = check,
      .uses = uses,
      .formulas = kFormulas,
      .tensors = kTensors,
      .token = TokenForm::decoder,
      .settings = kSettings,
  };
  return mechanism;
}

}  // namespace fovea
