// Focal Attention: tau from the layer's input.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/focal.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "fovea/attention/call.h"
#include "fovea/attention/mechanism.h"
#include "fovea/attention/stream_rows.h"
#include "fovea/base/error.h"
#include "fovea/runtime/own_kernels.h"

namespace fovea {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Sums run in order and in float64, document by document: the same bits whatever stands in the
// documents before, and the same bits when decoding continues from a saved sum.
enum class Mean : int64_t { prefix, prefix_transposed, whole };

// One run of n values; `sum` and `count` are those of earlier calls (prefix only).
void mean_of_run(Mean kind, const double* z, double* out, int64_t n, double sum, double count) {
  switch (kind) {
    case Mean::prefix:
      for (int64_t i = 0; i < n; ++i) out[i] = (sum += z[i]) / (count += 1.0);
      break;
    case Mean::prefix_transposed: {
      double later = 0.0;
      for (int64_t i = n - 1; i >= 0; --i)
        out[i] = later += z[i] / (count + static_cast<double>(i + 1));
      break;
    }
    case Mean::whole: {
      for (int64_t i = 0; i < n; ++i) sum += z[i];
      std::fill(out, out + n, sum / static_cast<double>(n));
      break;
    }
  }
}

// The same by operations, for tensors on a GPU: sums over documents are differences of sums over
// rows, so the last bits know what stands before.
at::Tensor means_by_operations(Mean kind, const at::Tensor& z, const at::Tensor& begins_bt,
                               const at::Tensor& sum_b, const at::Tensor& count_b) {
  const int64_t t = z.size(1);
  const at::Tensor begins = begins_bt.expand(z.sizes()),
                   place = at::arange(t, begins.options().dtype(at::kLong)).expand(z.sizes());
  const at::Tensor begin = std::get<0>(at::where(begins, place, 0).cummax(1));
  // Of the token behind a document, turned: the least place that begins one.
  const at::Tensor behind = at::where(begins, place, t)
                                .roll(-1, 1)
                                .index_fill_(1, at::full({1}, t - 1, place.options()), t);
  const at::Tensor end = std::get<0>(behind.flip(1).cummin(1)).flip(1) - 1;
  // What stood before this call belongs to the document that begins the row.
  const at::Tensor first = begin.eq(0).to(z.scalar_type());
  const at::Tensor count =
      first * count_b.to(z.scalar_type()).unsqueeze(1) + (place - begin + 1).to(z.scalar_type());
  const at::Tensor x = kind == Mean::prefix_transposed ? z / count : z, sums = x.cumsum(1);
  const auto before = sums.gather(1, begin) - x.gather(1, begin);
  if (kind == Mean::prefix_transposed) return sums.gather(1, end) - sums + x;
  const at::Tensor earlier = first * sum_b.unsqueeze(1);
  if (kind == Mean::prefix) return (sums - before + earlier) / count;
  return (sums.gather(1, end) - before + earlier) / (end - begin + 1).to(z.scalar_type());
}

// y = A z with A the averaging matrix of each document (or its transpose). Linear, so its gradient
// is the transposed matrix.
class DocumentMean : public torch::autograd::Function<DocumentMean> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& z_bt,
                            const at::Tensor& begins_bt, const at::Tensor& sum_b,
                            const at::Tensor& count_b, int64_t kind) {
    ctx->save_for_backward({begins_bt, sum_b, count_b});
    ctx->saved_data["kind"] = kind;
    if (!has_own_kernels(z_bt) && z_bt.size(1) > 0)
      return means_by_operations(static_cast<Mean>(kind), z_bt, begins_bt, sum_b, count_b);
    const at::Tensor z = z_bt.contiguous(), begins = begins_bt.contiguous();
    at::Tensor out = at::empty_like(z);
    const int64_t t = z.size(1);
    for (int64_t b = 0; b < z.size(0); ++b) {
      const double* from = z.const_data_ptr<double>() + b * t;
      double* to = out.data_ptr<double>() + b * t;
      const bool* begin = begins.const_data_ptr<bool>() + (begins.size(0) == 1 ? 0 : b * t);
      for (int64_t i = 0; i < t;) {
        int64_t end = i + 1;
        while (end < t && !begin[end]) ++end;
        mean_of_run(static_cast<Mean>(kind), from + i, to + i, end - i,
                    i == 0 ? sum_b[b].item<double>() : 0.0,
                    i == 0 ? count_b[b].item<double>() : 0.0);
        i = end;
      }
    }
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const Mean kind = static_cast<Mean>(ctx->saved_data["kind"].toInt());
    const Mean other = kind == Mean::prefix              ? Mean::prefix_transposed
                       : kind == Mean::prefix_transposed ? Mean::prefix
                                                         : kind;
    // The saved sum is a constant of the forward; only the count shapes the matrix.
    const at::Tensor grad = DocumentMean::apply(grads[0], saved[0], at::zeros_like(saved[1]),
                                                saved[2], static_cast<int64_t>(other));
    return {grad, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// True where a document begins, [b or 1, t].
at::Tensor document_begins(const at::Tensor& documents, int64_t tokens,
                           const at::TensorOptions& options) {
  at::Tensor begins = at::zeros({1, tokens}, options.dtype(at::kBool));
  if (documents.defined()) {
    const at::Tensor labels = documents.dim() == 1 ? documents.unsqueeze(0) : documents;
    require<ShapeError>(labels.size(-1) == tokens, "temperature",
                        "documents must have {} tokens a row; got {}", tokens, labels.size(-1));
    begins = begins.repeat({labels.size(0), 1});
    if (tokens > 1)
      begins.narrow(1, 1, tokens - 1)
          .copy_(labels.narrow(1, 1, tokens - 1) != labels.narrow(1, 0, tokens - 1));
  }
  if (tokens > 0) begins.select(1, 0).fill_(true);
  return begins;
}

// x.w of every token, float64 [b, t].
at::Tensor scores(const TemperatureParameters& parameters, const at::Tensor& x_btc) {
  require<ShapeError>(parameters.weight_c.defined() && parameters.weight_c.dim() == 1 &&
                          parameters.weight_c.size(0) == x_btc.size(2),
                      "temperature", "w_tau must have the width {} of the layer's input",
                      x_btc.size(2));
  const at::ScalarType dtype = x_btc.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::matmul(x_btc.to(dtype), parameters.weight_c.to(dtype)).to(at::kDouble);
}

TemperatureRows bounded(const TemperatureSpec& spec, int64_t head_dim, const at::Tensor& raw) {
  const double low = spec.low(head_dim), high = spec.high(head_dim);
  TemperatureRows rows;
  if (spec.bound == TemperatureSpec::Bound::sigmoid) {
    rows.tau_bt = low + (high - low) * at::sigmoid(raw);
    rows.clipped_share = at::zeros({}, raw.options().dtype(at::kFloat));
    return rows;
  }
  const at::Tensor value = raw.detach();
  rows.clipped_share = value.le(low).logical_or(value.ge(high)).to(at::kFloat).mean();
  if (spec.bound == TemperatureSpec::Bound::clip) {
    rows.tau_bt = raw.clamp(low, high);
  } else {
    rows.tau_bt = value.clamp(low, high) + (raw - value);  // raw - value is 0 with gradient 1
  }
  return rows;
}

}  // namespace

double initial_temperature_bias(const TemperatureSpec& spec, int64_t head_dim) {
  return spec.bound == TemperatureSpec::Bound::sigmoid
             ? 0.0
             : 0.5 * (spec.low(head_dim) + spec.high(head_dim));
}

TemperatureRows temperature_rows(const TemperatureSpec& spec, int64_t head_dim,
                                 const TemperatureParameters& parameters, const at::Tensor& x_btc,
                                 const AttentionContext& context, TemperatureState* state) {
  require<ShapeError>(x_btc.dim() == 3, "temperature", "x must be [b, t, width]; got {} dimensions",
                      x_btc.dim());
  require<ShapeError>(parameters.bias.defined() && parameters.bias.numel() == 1, "temperature",
                      "the bias must be one number");
  using Form = TemperatureSpec::Form;
  require<UnsupportedError>(!(state && spec.form == Form::sequence), "temperature",
                            "form sequence needs the whole text and has no decode (F-1, F-12); "
                            "train with form prefix instead");
  require<UnsupportedError>(!(state && context.query_documents_bt.defined()), "temperature",
                            "a running state holds one document a row; got packed documents");
  const int64_t b = x_btc.size(0), t = x_btc.size(1);
  const at::ScalarType dtype = x_btc.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor bias = parameters.bias.reshape({1, 1}).to(dtype);
  if (spec.form == Form::global) return bounded(spec, head_dim, bias.expand({b, t}));
  const at::Tensor z_bt = scores(parameters, x_btc);
  if (spec.form == Form::token) return bounded(spec, head_dim, z_bt.to(dtype) + bias);
  const at::Tensor begins = document_begins(context.query_documents_bt, t, x_btc.options());
  const bool prefix = spec.form == Form::prefix;
  const at::Tensor sum_b = state ? state->sum_b.to(z_bt.options()) : at::zeros({b}, z_bt.options()),
                   count_b =
                       state ? state->count_b.to(z_bt.device()) : at::zeros({b}, z_bt.options());
  const at::Tensor mean = DocumentMean::apply(
      z_bt, begins, sum_b, count_b, static_cast<int64_t>(prefix ? Mean::prefix : Mean::whole));
  TemperatureRows rows = bounded(spec, head_dim, mean.to(dtype) + bias);
  if (state) {
    const at::NoGradGuard no_gradient;
    rows.sums_bt = at::empty_like(z_bt);
    at::Tensor sum = sum_b.clone();
    if (has_own_kernels(z_bt)) {
      for (int64_t i = 0; i < t; ++i) rows.sums_bt.select(1, i).copy_(sum.add_(z_bt.select(1, i)));
    } else if (t > 0) {
      rows.sums_bt.copy_(z_bt.cumsum(1).add_(sum.unsqueeze(1)));
      sum = rows.sums_bt.select(1, t - 1).clone();
    }
    state->sum_b = sum;
    state->count_b = count_b + t;
  }
  return rows;
}

namespace {

// The paper states its bounds for heads of this width (spec 10.2, F-6).
constexpr double kPaperHeadDim = 128.0;

void check_focal(const AttentionSpec& s) {
  require<ConfigError>(std::isfinite(s.scale) && s.scale >= 0.0, kSpecPlace,
                       "scale must be 0 (1/sqrt(head_dim)) or positive; got {}", s.scale);
  const TemperatureSpec& t = s.temperature;
  if (t.kind == TemperatureSpec::Kind::constant) {
    require<ConfigError>(std::isfinite(t.value) && t.value > 0.0, kSpecPlace,
                         "temperature.value must be a positive number; got {}", t.value);
    return;
  }
  require<ConfigError>(
      std::isfinite(t.tau_min) && t.tau_min > 0.0 && std::isfinite(t.tau_max), kSpecPlace,
      "temperature.tau_min must be positive, because tau divides the logits; got {}", t.tau_min);
  require<ConfigError>(t.tau_min < t.tau_max, kSpecPlace,
                       "temperature.tau_min must be below temperature.tau_max; got {} and {}",
                       t.tau_min, t.tau_max);
}

std::vector<StageUse> focal_uses(const AttentionSpec& spec) {
  const TemperatureSpec& t = spec.temperature;
  if (t.kind == TemperatureSpec::Kind::learned)
    return {{StageId::scale,
             fmt::format("temperature learned {} {}", enum_name(t.form), enum_name(t.bound))}};
  std::vector<StageUse> all;
  if (spec.scale > 0.0) all.push_back({StageId::scale, fmt::format("scale {}", spec.scale)});
  if (t.value != 1.0) all.push_back({StageId::scale, fmt::format("temperature {}", t.value)});
  return all;
}

bool learns(const AttentionSpec& spec) {
  return spec.temperature.kind == TemperatureSpec::Kind::learned;
}

constexpr TensorSlot kFocalTensors[] = {
    {.name = "tau",
     .member = &AttentionTensors::tau_bt,
     .sizes = [](const AttentionSpec& spec, const CallShape& shape) -> Sizes {
       if (!learns(spec)) return std::nullopt;
       return std::vector{shape.batch, shape.queries};
     },
     .setting =
         [](const AttentionSpec& spec) {
           return fmt::format("temperature.kind {}", enum_name(spec.temperature.kind));
         },
     .token_axis = 1}};

// The running sum, and tau of the earlier queries that convolutions read.
void add_streams_focal(const AttentionSpec& spec, const StreamSpec& keys,
                       std::vector<StreamSpec>& all) {
  if (!learns(spec)) return;
  if (keeps_prefix_sum(spec.temperature))
    all.push_back({.name = stream::kTemperature, .row_shape = {1}, .dtype = at::kDouble});
  if (const int64_t earlier = earlier_rows(spec).all; earlier > 0)
    all.push_back({.name = stream::kTau,
                   .row_shape = {1},
                   .dtype = keys.dtype == at::kDouble ? at::kDouble : at::kFloat,
                   .keep_last = earlier + 1,
                   .new_rows = new_rows_of<&AttentionTensors::tau_bt, TokenAxis::last>,
                   .set_rows = set_rows_of<&AttentionTensors::tau_bt, TokenAxis::last>});
}

constexpr MechanismSetting kFocalSettings[] = {
    {"constant temperature", [](AttentionSpec& s) { s.temperature.value = 0.4; }},
    {"learned temperature",
     [](AttentionSpec& s) { s.temperature.kind = TemperatureSpec::Kind::learned; }},
};

}  // namespace

void TemperatureSpec::describe(FieldVisitor& v) {
  v.choice({"kind",
            "constant: logits q.k/(t sqrt d); learned: q.k/tau_i from the layer's input (spec 10)"},
           kind);
  v.real({"value", "t of kind constant; 1 = standard attention, 0.4 = the Focal paper's best",
          ranges::kPositive},
         value);
  v.choice({"form", "learned: sequence (leaks the future, F-1), prefix, token, global"}, form);
  v.choice({"bound", "learned: clip (no gradient outside), sigmoid, straight_through (F-3)"},
           bound);
  v.real({"tau_min", "learned: lower bound for head width 128", ranges::kPositive}, tau_min);
  v.real({"tau_max", "learned: upper bound for head width 128", ranges::kPositive}, tau_max);
  v.boolean({"scale_bounds", "learned: multiply the bounds by sqrt(d/128) (F-6)"}, scale_bounds);
}

double TemperatureSpec::low(int64_t d) const {
  return tau_min * (scale_bounds ? std::sqrt(static_cast<double>(d) / kPaperHeadDim) : 1.0);
}

double TemperatureSpec::high(int64_t d) const {
  return tau_max * (scale_bounds ? std::sqrt(static_cast<double>(d) / kPaperHeadDim) : 1.0);
}

std::span<const std::string_view> enum_names(TemperatureSpec::Kind) {
  static constexpr std::string_view names[] = {"constant", "learned"};
  return names;
}
std::span<const std::string_view> enum_names(TemperatureSpec::Form) {
  static constexpr std::string_view names[] = {"sequence", "prefix", "token", "global"};
  return names;
}
std::span<const std::string_view> enum_names(TemperatureSpec::Bound) {
  static constexpr std::string_view names[] = {"clip", "sigmoid", "straight_through"};
  return names;
}
const Mechanism& temperature_mechanism() {
  static constexpr Mechanism mechanism{
      .name = "temperature",
      .describe =
          [](AttentionSpec& spec, FieldVisitor& v) {
            v.nested({"temperature", "stage 1: Focal temperature"}, spec.temperature);
          },
      .check = check_focal,
      .uses = focal_uses,
      .tensors = kFocalTensors,
      .add_streams = add_streams_focal,
      .token_of = [](const AttentionSpec& spec) -> TokenUse {
        if (spec.temperature.kind == TemperatureSpec::Kind::learned &&
            spec.temperature.form == TemperatureSpec::Form::sequence)
          return {TokenForm::operations, "temperature.form sequence"};
        return {};
      },
      .settings = kFocalSettings,
      .remove = [](AttentionSpec& spec) { spec.temperature = {}; },
  };
  return mechanism;
}

}  // namespace fovea
