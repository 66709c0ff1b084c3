// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/transformer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "fovea/attention/places.h"
#include "fovea/attention/plan.h"
#include "fovea/base/error.h"
#include "fovea/nn/matmul.h"
#include "fovea/nn/matrix.h"
#include "fovea/nn/mechanisms/mechanism.h"
#include "fovea/nn/transformer_impl.h"

namespace fovea {

void Transformer::Impl::check(const ModelInput& input) const {
  const at::Tensor& tokens = input.tokens_bt;
  require<ShapeError>(tokens.defined() && tokens.dim() == 2 && tokens.scalar_type() == at::kLong,
                      "model", "expected tokens [batch, tokens] of int64; got {}",
                      tokens.defined() ? fmt::format("{} dimensions of {}", tokens.dim(),
                                                     at::toString(tokens.scalar_type()))
                                       : "none");
  for (const at::Tensor& t : {input.documents_bt, input.positions_bt}) {
    require<ShapeError>(!t.defined() || t.sizes() == input.tokens_bt.sizes(), "model",
                        "documents and positions must have the shape of the tokens, [{}, {}]",
                        input.tokens_bt.size(0), input.tokens_bt.size(1));
  }
}

RopeTable Transformer::Impl::rope_for(int64_t positions) const {
  if (config.positions != Positions::rope) return {};
  const bool dynamic = config.rope.scaling.dynamic();
  if (!dynamic && positions <= config.context && compute.dtype != at::kDouble) return rope;
  // A dynamic rule depends on the length of the text; others only need enough rows.
  return make_rope_table(config.rope, config.head_dim,
                         dynamic ? positions : std::max(positions, config.context), device,
                         compute.dtype == at::kDouble ? at::kDouble : at::kFloat);
}

LogitTransform Transformer::Impl::logit_rule(double z_loss) const {
  return {.scale = config.logit_scale, .cap = config.logit_cap, .z_loss = z_loss};
}

at::Tensor Transformer::Impl::ruled(const at::Tensor& product) const {
  const at::Tensor z = config.logit_scale == 1.0 ? product : product * config.logit_scale;
  return config.logit_cap > 0.0 ? at::tanh(z / config.logit_cap) * config.logit_cap : z;
}

PassContext Transformer::Impl::make_pass(const ModelInput& input) const {
  const int64_t b = input.tokens_bt.size(0), t = input.tokens_bt.size(1);
  if (input.training) fused = nullptr;
  PassContext pass;
  pass.tokens_bt = input.tokens_bt;
  const bool placed = input.positions_bt.defined();
  const auto range = [&](at::Device where) {
    return at::arange(t, at::TensorOptions(at::kLong).device(where)).expand({b, t}).contiguous();
  };
  pass.positions = placed ? input.positions_bt.to(device).contiguous() : range(device);
  const bool reads_table =
      config.positions == Positions::learned || config.positions == Positions::sinusoidal;
  pass.last_position = placed && reads_table && input.positions_bt.numel() > 0
                           ? input.positions_bt.max().item<int64_t>()
                           : t - 1;
  pass.rope = rope_for(t);
  pass.training = input.training;
  pass.dropout_seed = input.dropout_seed;
  pass.focus = compute.focus;
  pass.attention.training = input.training;
  pass.attention.dropout_seed = input.dropout_seed;
  pass.attention.plans = std::make_shared<PlanCache>();
  if (input.documents_bt.defined()) {
    const at::Tensor documents = input.documents_bt.to(device);
    pass.attention.query_documents_bt = pass.attention.key_documents_bs = documents;
    pass.attention.query_positions_bt = pass.attention.key_positions_bs = pass.positions;
    if (!device.is_cpu() && input.documents_bt.is_cpu()) {
      const at::Tensor positions = placed ? input.positions_bt.cpu() : range(at::kCPU);
      pass.attention.on_host = std::make_shared<const Places>(
          Places{positions, positions, input.documents_bt, input.documents_bt});
    }
  }
  return pass;
}

Transformer::Transformer(const ModelConfig& config, uint64_t seed, at::Device device,
                         FirstNumbers first)
    : impl_(std::make_unique<Impl>(config, seed, device, first)) {}
Transformer::~Transformer() = default;
Transformer::Transformer(Transformer&&) noexcept = default;

const ModelConfig& Transformer::config() const { return impl_->config; }
ParameterRegistry& Transformer::parameters() { return impl_->registry; }
const ParameterRegistry& Transformer::parameters() const { return impl_->registry; }
at::Device Transformer::device() const { return impl_->device; }
ComputeOptions& Transformer::compute() { return impl_->compute; }
const ComputeOptions& Transformer::compute() const { return impl_->compute; }

at::Tensor Transformer::hidden(const ModelInput& input, ForwardInfo* info) const {
  impl_->check(input);
  Telemetry telemetry(info);
  LayerObserver* const observers[] = {&telemetry};
  return impl_->walk(input.tokens_bt, impl_->make_pass(input), observers);
}

at::Tensor Transformer::logits(const at::Tensor& hidden) const {
  const at::ScalarType wide = hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const kernels::Activations activations = impl_->compute.activations;
  const at::Tensor z =
      !at::GradMode::is_enabled() && is_few_rows(hidden, {impl_->head}, activations)
          ? few_rows_product(hidden, {impl_->head}, wide, activations)
      : is_packed(impl_->head)     ? packed_product(hidden.to(wide), {impl_->head}, activations)
      : at::GradMode::is_enabled() ? at::linear(hidden.to(wide), impl_->head.to(wide))
                                   : linear_product(hidden.to(wide), impl_->head.to(wide));
  return impl_->ruled(z);
}

double loss_divisor(double normaliser, const at::Tensor& targets) {
  return normaliser > 0 ? normaliser
                        : static_cast<double>(std::max<int64_t>(targets.item<int64_t>(), 1));
}

LossResult Transformer::loss(const ModelInput& input, const at::Tensor& targets_bt,
                             double normaliser, ForwardInfo* info, double z_loss) const {
  impl_->check(input);
  Telemetry telemetry(info);
  AddedLosses added;
  std::vector<LayerObserver*> observers{&telemetry};
  if (const std::string keys = impl_->added_loss_keys(); input.training && !keys.empty()) {
    require<UnsupportedError>(
        !impl_->compute.checkpoint_layers, "model",
        "{} need the layers' graphs; set 'train.gradient_checkpointing: false' and 'train.shard: "
        "moments'",
        keys);
    observers.push_back(&added);
  }
  const at::Tensor states = impl_->walk(input.tokens_bt, impl_->make_pass(input), observers);
  const at::Tensor targets = targets_bt.flatten();
  const at::Tensor count = targets.ge(0).sum();
  const double divisor = loss_divisor(normaliser, count);
  const CrossEntropyResult rows =
      linear_cross_entropy(states.flatten(0, 1), impl_->head, targets, 1.0 / divisor,
                           impl_->compute.loss_chunk, impl_->logit_rule(z_loss));
  at::Tensor loss = rows.total;
  for (const at::Tensor& extra : added.losses())
    loss = loss + extra * (count.to(at::kDouble) / divisor).to(extra.scalar_type());
  return {.loss = loss,
          .nll_sum = rows.nll_r.sum(at::kDouble),
          .targets = count,
          .ln_z_sums =
              at::stack({rows.ln_z_r.sum(at::kDouble), rows.ln_z_r.square().sum(at::kDouble)})};
}

at::Tensor Transformer::token_nll(const ModelInput& input, const at::Tensor& targets_bt,
                                  ForwardInfo* info) const {
  const at::NoGradGuard no_grad;
  const at::Tensor states = hidden(input, info).flatten(0, 1);
  // Scores are read to three digits: logits in float32 even where the model computes in bfloat16.
  const at::Tensor wide = states.scalar_type() == at::kBFloat16 ? states.to(at::kFloat) : states;
  const at::Tensor read = as_read(wide, impl_->head, impl_->compute.activations);
  return linear_cross_entropy(read, impl_->head, targets_bt.flatten(), 1.0,
                              impl_->compute.loss_chunk, impl_->logit_rule(0.0))
      .nll_r.view(targets_bt.sizes());
}

}  // namespace fovea
