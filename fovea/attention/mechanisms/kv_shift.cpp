// Keys, checks, cache streams and the shift itself.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/specs/kv_shift.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "fovea/attention/call.h"
#include "fovea/attention/mechanism.h"
#include "fovea/attention/pipeline.h"
#include "fovea/attention/places.h"
#include "fovea/attention/stream_spec.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

void check_kv_shift(const AttentionSpec& spec) {
  require<ConfigError>(spec.kv_shift.active() || spec.kv_shift.start == 0.0, kSpecPlace,
                       "kv_shift.start acts only with kv_shift.keys or kv_shift.values; got {}",
                       spec.kv_shift.start);
}

std::string setting(const AttentionSpec& spec) {
  const KvShiftSpec& s = spec.kv_shift;
  return s.keys && s.values ? "kv_shift" : s.keys ? "kv_shift keys" : "kv_shift values";
}

std::vector<StageUse> kv_shift_uses(const AttentionSpec& spec) {
  if (!spec.kv_shift.active()) return {};
  return {{.stage = StageId::keys, .setting = setting(spec)}};
}

constexpr TensorSlot kKvShiftTensors[] = {
    {.name = "key_shift",
     .member = &AttentionTensors::key_shift_g2,
     .sizes = [](const AttentionSpec& spec, const CallShape&) -> Sizes {
       if (!spec.kv_shift.keys) return std::nullopt;
       return std::vector<int64_t>{spec.kv_heads, 2};
     },
     .setting = setting},
    {.name = "value_shift",
     .member = &AttentionTensors::value_shift_g2,
     .sizes = [](const AttentionSpec& spec, const CallShape&) -> Sizes {
       if (!spec.kv_shift.values) return std::nullopt;
       return std::vector<int64_t>{spec.value_heads(), 2};
     },
     .setting = setting},
};

void add_streams_kv_shift(const AttentionSpec& spec, const StreamSpec& keys,
                          std::vector<StreamSpec>& all) {
  const auto add = [&](const char* name, int64_t heads, int64_t width) {
    // The last row is read; those before it are for going back by some tokens.
    all.push_back({.name = name, .row_shape = {heads, width}, .dtype = keys.dtype, .keep_last = 8});
  };
  if (spec.kv_shift.keys) add(stream::kUnshiftedKeys, spec.kv_heads, spec.head_dim);
  if (spec.kv_shift.values) add(stream::kUnshiftedValues, spec.value_heads(), spec.value_width());
}

// Where a key is not the next token of the document of the key before, [b or 1, 1, s - 1, 1];
// undefined where all are.
at::Tensor breaks(const AttentionCall& call) {
  const AttentionContext& context = call.context;
  if (!context.key_positions_bs.defined() && !context.key_documents_bs.defined()) return {};
  const Places places = resolve_places(context, call.q.size(2), call.k.size(2), call.k.device());
  const auto steps = [](const at::Tensor& x_bs) {
    const int64_t count = x_bs.size(1) - 1;
    return x_bs.narrow(1, 1, count) - x_bs.narrow(1, 0, count);
  };
  at::Tensor apart = steps(places.key_positions_bs).ne(1);
  if (places.key_documents_bs.defined())
    apart = apart.logical_or(steps(places.key_documents_bs).ne(0));
  return apart.unsqueeze(1).unsqueeze(-1);
}

// Row i of the result is row i - 1 of x; zeros before the first and at breaks.
at::Tensor row_before(const at::Tensor& x_bgsd, const at::Tensor& apart) {
  at::Tensor before = x_bgsd.narrow(2, 0, x_bgsd.size(2) - 1);
  if (apart.defined()) before = before.masked_fill(apart, 0.0);
  return at::cat({at::zeros_like(x_bgsd.narrow(2, 0, 1)), before}, 2);
}

at::Tensor mixed(const at::Tensor& x_bgsd, const at::Tensor& before_bgsd,
                 const at::Tensor& weight_g2) {
  const at::ScalarType wide = accumulate_type(x_bgsd.scalar_type());
  const auto weight = [&](int64_t which) {
    return weight_g2.select(1, which).to(wide).view({1, -1, 1, 1});
  };
  return (x_bgsd.to(wide) * weight(0) + before_bgsd.to(wide) * weight(1)).to(x_bgsd.scalar_type());
}

at::Tensor shifted(const at::Tensor& x_bgsd, const at::Tensor& weight_g2, const at::Tensor& apart) {
  if (x_bgsd.size(2) == 0) return x_bgsd;
  return mixed(x_bgsd, row_before(x_bgsd, apart), weight_g2);
}

// The rows of new tokens, which follow those of the stream.
at::Tensor shifted_after(CachedStreams& cache, const char* name, const at::Tensor& x_bgsd,
                         const at::Tensor& weight_g2) {
  const int64_t count = x_bgsd.size(2);
  cache.append(name, x_bgsd.transpose(1, 2));
  if (count == 0) return x_bgsd;
  std::vector<at::Tensor> before;
  for (int64_t b = 0; b < cache.batch(); ++b) {
    const at::Tensor rows = cache.rows(name, b).transpose(1, 2);
    before.push_back(rows.size(2) > count ? rows.narrow(2, rows.size(2) - count - 1, count)
                                          : row_before(rows, {}));
  }
  return mixed(x_bgsd, before.size() == 1 ? before[0] : at::cat(before), weight_g2);
}

void rewrite(AttentionCall& call, CachedStreams* cache) {
  KvShiftSpec& spec = call.spec.kv_shift;
  if (!spec.active()) return;
  const at::Tensor apart = cache == nullptr ? breaks(call) : at::Tensor();
  const auto shift = [&](at::Tensor& rows, at::Tensor& weight, const char* stream) {
    rows = cache == nullptr ? shifted(rows, weight, apart)
                            : shifted_after(*cache, stream, rows, weight);
    weight = at::Tensor();
  };
  if (spec.keys) shift(call.k, call.tensors.key_shift_g2, stream::kUnshiftedKeys);
  if (spec.values) shift(call.v, call.tensors.value_shift_g2, stream::kUnshiftedValues);
  spec = {};
}

constexpr MechanismSetting kKvShiftSettings[] = {
    {"KV shifting", [](AttentionSpec& s) { s.kv_shift = {.keys = true, .values = true}; }},
};

}  // namespace

void KvShiftSpec::describe(FieldVisitor& v) {
  v.boolean({"keys", "keys are a1 k_i + a2 k_{i-1}, learned by key head"}, keys);
  v.boolean({"values", "values are b1 v_i + b2 v_{i-1}, learned by value head"}, values);
  v.real({"start", "of a2 and b2; a1 and b1 start at 1 minus this", {-1, 1}}, start);
}

const Mechanism& kv_shift_mechanism() {
  static constexpr Mechanism mechanism{
      .name = "kv_shift",
      .describe =
          [](AttentionSpec& spec, FieldVisitor& v) {
            v.nested(
                {"kv_shift", "KV shifting: keys and values mixed with those of the token before"},
                spec.kv_shift);
          },
      .check = check_kv_shift,
      .uses = kv_shift_uses,
      .rewrite_keys = rewrite,
      .tensors = kKvShiftTensors,
      .add_streams = add_streams_kv_shift,
      .token = TokenForm::kernels,
      .settings = kKvShiftSettings,
      .remove = [](AttentionSpec& spec) { spec.kv_shift = {}; },
  };
  return mechanism;
}

}  // namespace fovea
