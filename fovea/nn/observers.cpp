// Who looks on in training and evaluation: telemetry, and losses that mechanisms add.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "fovea/nn/mechanisms/mechanism.h"
#include "fovea/nn/walk.h"

namespace fovea {

double ForwardInfo::clipped_share() const {
  double sum = 0.0;
  for (const Reading& share : clipped_shares) sum += share.value();
  return sum;
}

std::vector<const Reading*> ForwardInfo::readings() const {
  std::vector<const Reading*> all;
  for (const std::vector<Reading>* list : {&temperature, &clipped_shares})
    for (const Reading& reading : *list) all.push_back(&reading);
  for (const FocusObservation& layer : focus) all.push_back(&layer.group_sums.numbers());
  return all;
}

Telemetry::Telemetry(ForwardInfo* info) : info_(info) {
  if (info_ != nullptr) *info_ = {};
}

void Telemetry::before_attention(const LayerStep& step, const PassContext& /*pass*/,
                                 AttentionContext& context) {
  if (info_ != nullptr) context.want_tiles = step.spec.focus.gate == FocusSpec::Gate::hard;
}

void Telemetry::after_attention(const LayerStep& step, const PassContext& pass,
                                const AttentionContext& /*context*/,
                                const AttentionResult& result) {
  if (info_ == nullptr) return;
  info_->path = result.path;
  info_->fused_layers += result.path.is_ours() ? 1 : 0;
  if (result.path.keys_read.row > 0.0) info_->keys_read.push_back(result.path.keys_read);
  for (const LearnedMechanism& m : learned_mechanisms())
    if (m.tell != nullptr) m.tell(step, pass, result, *info_);
}

void AddedLosses::before_attention(const LayerStep& step, const PassContext& /*pass*/,
                                   AttentionContext& /*context*/) {
  for (const LearnedMechanism& m : learned_mechanisms()) {
    if (m.added_loss == nullptr) continue;
    const at::Tensor loss = m.added_loss(step);
    if (loss.defined()) losses_.push_back(loss);
  }
}

}  // namespace fovea
