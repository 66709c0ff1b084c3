// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/retrofit/differential_start.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <limits>

#include "fovea/attention/mechanisms/head_output.h"
#include "fovea/attention/stages.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

constexpr const char* kWhere = "retrofit";
// lambda 0 is the first map alone, -1 the sum of both: with values of both heads it loses half of
// the difference of the two maps, the first map alone all of it for the second head. lambda_init of
// the layer, the fourth candidate, is where the mechanism starts in a new model.
constexpr double kLambdas[] = {0.0, -0.5, -1.0};
// Of the mean square of an input, added to the diagonal: few tokens do not decide directions that
// they hardly have.
constexpr double kRidge = 1e-3;
// Entries of lambda_q1 and lambda_q2: not 0, so that lambda_k1 and lambda_k2 have a gradient.
constexpr double kLambdaQuery = 0.1;

std::string layer_name(int64_t layer, const char* part) {
  return fmt::format("model.layers.{}.self_attn.{}", layer, part);
}

at::Tensor& value_of(Transformer& model, const std::string& name) {
  return model.parameters().find(name)->value;
}

/// lambda = exp(a) - exp(-a) + lambda_init = 2 sinh(a) + lambda_init.
void set_lambda(Transformer& model, int64_t layer, double lambda) {
  const double a = std::asinh(0.5 * (lambda - lambda_init(layer)));
  const double width = static_cast<double>(model.config().head_dim);
  const auto fill = [&](const char* part, double x) {
    value_of(model, layer_name(layer, part)).fill_(x);
  };
  fill("lambda_q1", kLambdaQuery);
  fill("lambda_k1", a / (kLambdaQuery * width));
  fill("lambda_q2", kLambdaQuery);
  fill("lambda_k2", -a / (kLambdaQuery * width));
}

/// Blocks of `width` rows of the base in the start's order of heads.
at::Tensor in_order(const at::Tensor& rows, int64_t heads, int64_t kv_heads) {
  std::vector<at::Tensor> parts;
  const std::vector<at::Tensor> blocks = rows.chunk(heads);
  for (int64_t place = 0; place < heads; ++place)
    parts.push_back(blocks[static_cast<size_t>(head_of_base(place, heads, kv_heads))]);
  return at::cat(parts);
}

Transformer copied(const Transformer& base) {
  const ModelConfig config = differential_config(base.config());
  Transformer start(config, 0, base.device());
  for (Parameter& p : start.parameters().all()) {
    const Parameter* same = base.parameters().find(p.name);
    if (same == nullptr) continue;
    p.value.copy_(same->value);
    // OLMo-2's norm over all heads has a gain for each.
    const bool of_queries =
        p.name.ends_with("q_proj.weight") || p.name.ends_with("q_proj.bias") ||
        (p.name.ends_with("q_norm.weight") && p.value.size(0) == config.heads * config.head_dim);
    if (of_queries) p.value.copy_(in_order(same->value, config.heads, config.kv_heads));
  }
  return start;
}

/// Head outputs of a layer over the whole text [n, heads * width], float64.
at::Tensor outputs(const Transformer& model, std::span<const ModelInput> text, int64_t layer) {
  std::vector<at::Tensor> rows;
  for (const ModelInput& input : text)
    rows.push_back(model.head_outputs(input, layer).flatten(0, 1).to(at::kDouble));
  return at::cat(rows);
}

/// W [out, in] with x W^T nearest to y.
at::Tensor least_squares(const at::Tensor& x_ni, const at::Tensor& y_no) {
  at::Tensor gram = at::matmul(x_ni.t(), x_ni);
  gram.diagonal().add_(kRidge * gram.diagonal().mean() + 1e-12);
  const at::Tensor factor = at::linalg_cholesky(gram);
  return at::cholesky_solve(at::matmul(x_ni.t(), y_no), factor).t();
}

struct Fit {
  double lambda = 0.0, error = std::numeric_limits<double>::infinity();
  at::Tensor wo;
};

Fit fit_layer(const Transformer& base, Transformer& start, std::span<const ModelInput> text,
              int64_t layer) {
  const at::Tensor& wo = base.parameters().find(layer_name(layer, "o_proj.weight"))->value;
  const at::Tensor wanted = at::matmul(outputs(base, text, layer), wo.to(at::kDouble).t());
  std::vector<double> lambdas(std::begin(kLambdas), std::end(kLambdas));
  lambdas.push_back(lambda_init(layer));
  Fit best;
  for (const double lambda : lambdas) {
    set_lambda(start, layer, lambda);
    const at::Tensor x = outputs(start, text, layer);
    Fit fit{.lambda = lambda, .wo = least_squares(x, wanted)};
    fit.error =
        ((at::matmul(x, fit.wo.t()) - wanted).square().mean() / (wanted.square().mean() + 1e-30))
            .item<double>();
    if (fit.error < best.error) best = std::move(fit);
  }
  return best;
}

}  // namespace

ModelConfig differential_config(const ModelConfig& base) {
  require<ConfigError>(base.heads % 2 == 0 && base.kv_heads % 2 == 0, kWhere,
                       "differential attention makes one head of two, and of two key heads; "
                       "expected even numbers, got {} heads and {} key heads",
                       base.heads, base.kv_heads);
  AttentionSpec spec = base.attention.spec;
  spec.mask = {}, spec.soft_cap = 0.0, spec.scale = 0.0, spec.dropout = 0.0;
  const bool plain = spec == AttentionSpec{} && base_attention(base.attention) == base.attention;
  require<UnsupportedError>(plain && !base.lora.active(), kWhere,
                            "differential attention has a start near plain attention with masks "
                            "and a soft-cap; this base has more ({}): give a model without it",
                            base.lora.active() ? "LoRA" : describe_pipeline(spec));
  ModelConfig config = base;
  config.attention.spec.differential = true;
  return config.resolved(config.vocab_size);
}

int64_t head_of_base(int64_t place, int64_t heads, int64_t kv_heads) {
  const int64_t together = heads / kv_heads;  // query heads of one key head
  const int64_t head = place / 2, map = place % 2;
  return (2 * (head / together) + map) * together + head % together;
}

DifferentialStart differential_start(const Transformer& base, std::span<const ModelInput> text,
                                     const std::function<void(int64_t)>& told) {
  const at::NoGradGuard no_grad;
  DifferentialStart start{.model = copied(base), .lambda = {}, .error = {}};
  for (int64_t layer = 0; layer < base.config().layers; ++layer) {
    Fit best = fit_layer(base, start.model, text, layer);
    set_lambda(start.model, layer, best.lambda);
    value_of(start.model, layer_name(layer, "o_proj.weight")).copy_(best.wo);
    start.lambda.push_back(best.lambda);
    start.error.push_back(best.error);
    if (told) told(layer + 1);
  }
  return start;
}

}  // namespace fovea
