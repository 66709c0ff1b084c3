// Focus in the walk: groups of a call's tokens, their telemetry, losses, calibration and state
// (spec 11). The parameters and rules of one layer are in focus_layer.h.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/mechanisms/focus.h"

#include <ATen/ATen.h>

#include "fovea/nn/mechanisms/focus_objectives.h"
#include "fovea/nn/mechanisms/mechanism.h"

namespace fovea {
namespace {

void build_focus(const LayerBuild& build, LayerWeights& layer) {
  if (!build.spec.focus.active()) return;
  layer.focus = add_focus(build.registry, build.spec, build.config.attention.focus, build.index,
                          build.config.width);
}

void load_groups(LayerStep& step, const PassContext& pass) {
  if (!step.spec.focus.active()) return;
  step.groups = groups_of(step, pass, pass.focus);
  set_groups(step.spec, step.layer.focus, step.groups, step.tensors);
}

void tell_groups(const LayerStep& step, const PassContext& pass, const AttentionResult& result,
                 ForwardInfo& info) {
  if (!step.spec.focus.active()) return;
  info.focus.resize(static_cast<size_t>(step.config.layers));
  FocusObservation& seen = info.focus[static_cast<size_t>(step.index)];
  seen = observation_of(step.spec, step.config.attention.focus, step.layer.focus, step.groups,
                        pass.attention, pass.focus);
  seen.path = result.path;
}

at::Tensor added_group_loss(const LayerStep& step) {
  if (!step.spec.focus.active()) return {};
  return group_losses(step.config.attention.focus, step.groups.groups.groups_btk);
}

std::string added_loss_keys(const ModelConfig& config) {
  const FocusSettings& focus = config.attention.focus;
  if (focus.entropy_weight <= 0.0 && focus.balance_weight <= 0.0) return "";
  return "'model.attention.focus.entropy_weight' and 'balance_weight'";
}

bool wants_calibration(const ModelConfig& config, LayerWeights& layer) {
  return layer.focus.defined() && config.attention.focus.standardise &&
         layer.focus.updates_here.of(layer.focus.updates).item<float>() == 0.0f;
}

/// Of the inputs of all ranks, from those of this one's `tokens`: the mean of means, and their
/// spread beside the spread within each.
InputStatistics of_all_ranks(const InputStatistics& own, int64_t tokens, Communicator& ranks) {
  if (ranks.size() == 1) return own;
  const auto count = static_cast<double>(tokens), all = ranks.sum(count);
  const at::Tensor own_mean = own.mean_c.to(at::kDouble), own_scale = own.scale.to(at::kDouble);
  const at::Tensor mean = ranks.sum(own_mean * count) / all;
  const at::Tensor square = own_scale.square().reciprocal() + (own_mean - mean).square().mean();
  return {mean.to(at::kFloat), (ranks.sum(square * count) / all).rsqrt().to(at::kFloat)};
}

// U-24.
void standardise_inputs(LayerWeights& layer, const at::Tensor& inputs_nc, Communicator& ranks) {
  const InputStatistics statistics =
      of_all_ranks(input_statistics(inputs_nc), inputs_nc.size(0), ranks);
  layer.focus.mean.copy_(statistics.mean_c);
  layer.focus.scale.copy_(statistics.scale);
}

void observe_groups(LayerWeights& layer, const ObservedStep& step) {
  if (!layer.focus.defined()) return;
  std::vector<FocusObservation> parts;
  for (const ForwardInfo& info : step.micro_batches) {
    if (step.layer < info.focus.size() && info.focus[step.layer].defined())
      parts.push_back(info.focus[step.layer]);
  }
  observe_layer(layer.spec, step.config.attention.focus, layer.focus, parts, step.ema_decay,
                step.progress, step.ranks);
}

}  // namespace

LayerGroups groups_of(const LayerStep& step, const PassContext& pass, FocusMode mode) {
  const LayerFocus& focus = step.layer.focus;
  const at::Tensor& y = step.y;
  const FocusSpec spec = spec_in_force(step.layer.spec, step.compute, FocusMode::configured).focus;
  const FocusParameters parameters = focus.parameters();
  LayerGroups out;
  out.features_btg =
      focus_features(parameters, step.config.attention.focus.stop_gradient ? y.detach() : y);
  out.scores_btk = focus_scores(spec, parameters, out.features_btg);
  out.groups =
      group_tokens(spec, out.scores_btk,
                   step.keys.potentials(spec, out.scores_btk, pass.attention, focus.potentials));
  const auto seed = static_cast<uint64_t>(step.layer.spec.depth);
  if (mode == FocusMode::random)
    out.groups.members_bt =
        random_members({y.size(0), y.size(1)}, spec.groups, spec.top_k, seed).to(y.device());
  if (mode == FocusMode::hash)
    out.groups.members_bt = hashed_members(pass.tokens_bt, spec.groups, spec.top_k, seed);
  if (mode == FocusMode::window) out.groups.members_bt = at::zeros_like(out.groups.members_bt);
  return out;
}

LearnedMechanism learned_focus() {
  return {.name = "focus",
          .build = build_focus,
          .load = load_groups,
          .tell = tell_groups,
          .added_loss = added_group_loss,
          .added_loss_keys = added_loss_keys,
          .wants_calibration = wants_calibration,
          .calibrate = standardise_inputs,
          .observe = observe_groups,
          .objectives = focus_objectives()};
}

}  // namespace fovea
