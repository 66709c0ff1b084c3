// What mechanisms learn beside the model's own loss: their objectives, calibration, and state that
// follows outside the gradient.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "fovea/base/error.h"
#include "fovea/nn/mechanisms/mechanism.h"
#include "fovea/nn/objectives.h"
#include "fovea/nn/transformer_impl.h"

namespace fovea {
namespace {

// The normed inputs of the layers that want calibration.
class LayerInputs final : public LayerObserver {
 public:
  LayerInputs(const std::vector<bool>& wanted, std::vector<std::vector<at::Tensor>>& inputs)
      : wanted_(wanted), inputs_(inputs) {}
  void before_attention(const LayerStep& step, const PassContext& /*pass*/,
                        AttentionContext& /*context*/) override {
    const auto index = static_cast<size_t>(step.index);
    if (wanted_[index]) inputs_[index].push_back(step.y.flatten(0, 1));
  }

 private:
  const std::vector<bool>& wanted_;
  std::vector<std::vector<at::Tensor>>& inputs_;
};

}  // namespace

std::string Transformer::Impl::added_loss_keys() const {
  for (const LearnedMechanism& m : learned_mechanisms()) {
    if (m.added_loss_keys == nullptr) continue;
    if (std::string keys = m.added_loss_keys(config); !keys.empty()) return keys;
  }
  return "";
}

bool Transformer::has(std::string_view mechanism) const {
  return std::ranges::any_of(impl_->registry.all(),
                             [&](const Parameter& p) { return p.mechanism == mechanism; });
}

std::vector<NamedObjective> mechanism_objectives() {
  std::vector<NamedObjective> all;
  for (const LearnedMechanism& m : learned_mechanisms())
    for (const MechanismObjective& objective : m.objectives)
      all.push_back({objective.name, m.name});
  return all;
}

LossResult Transformer::objective(std::string_view name, const ModelInput& input,
                                  const at::Tensor& targets_bt, double normaliser,
                                  ForwardInfo* info) const {
  impl_->check(input);
  for (const LearnedMechanism& m : learned_mechanisms()) {
    for (const MechanismObjective& objective : m.objectives) {
      if (objective.name != name) continue;
      require<UnsupportedError>(has(m.name), "model",
                                "objective '{}' needs a model with {}; this one has none", name,
                                m.name);
      return objective.run(*impl_, input, targets_bt, normaliser, info);
    }
  }
  fail<UnsupportedError>("model", "no mechanism brings an objective '{}'", name);
}

void Transformer::observe(std::span<const ForwardInfo> micro_batches, double ema_decay,
                          double progress, Communicator& ranks) {
  for (size_t i = 0; i < impl_->layers.size(); ++i) {
    const ObservedStep step{.micro_batches = micro_batches,
                            .layer = i,
                            .config = impl_->config,
                            .ema_decay = ema_decay,
                            .progress = progress,
                            .ranks = ranks};
    for (const LearnedMechanism& m : learned_mechanisms())
      if (m.observe != nullptr) m.observe(impl_->layers[i], step);
  }
}

void Transformer::calibrate(std::span<const ModelInput> batches, Communicator& ranks) {
  const auto wants = [&](const LearnedMechanism& m, LayerWeights& layer) {
    return m.wants_calibration != nullptr && m.wants_calibration(impl_->config, layer);
  };
  std::vector<bool> wanted;
  for (LayerWeights& layer : impl_->layers)
    wanted.push_back(std::ranges::any_of(
        learned_mechanisms(), [&](const LearnedMechanism& m) { return wants(m, layer); }));
  if (std::ranges::find(wanted, true) == wanted.end()) return;
  const at::NoGradGuard no_grad;
  std::vector<std::vector<at::Tensor>> inputs(impl_->layers.size());
  LayerInputs observer(wanted, inputs);
  LayerObserver* const observers[] = {&observer};
  for (const ModelInput& batch : batches) {
    impl_->check(batch);
    PassContext pass = impl_->make_pass(batch);
    pass.focus = FocusMode::off;
    impl_->walk(batch.tokens_bt, pass, observers);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].empty()) continue;
    const at::Tensor all = at::cat(inputs[i]);
    for (const LearnedMechanism& m : learned_mechanisms())
      if (wants(m, impl_->layers[i])) m.calibrate(impl_->layers[i], all, ranks);
  }
}

}  // namespace fovea
