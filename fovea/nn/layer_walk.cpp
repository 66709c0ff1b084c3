// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/nn/layer_walk.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "fovea/nn/layer_walk_work.h"

namespace fovea {

LayerWalk::LayerWalk(std::unique_ptr<Work> work) : work_(std::move(work)) {}
LayerWalk::LayerWalk(LayerWalk&&) noexcept = default;
LayerWalk& LayerWalk::operator=(LayerWalk&&) noexcept = default;
LayerWalk::~LayerWalk() = default;

bool LayerWalk::done() const { return work_->layer == work_->model.config.layers; }

void LayerWalk::next() {
  const at::NoGradGuard no_grad;
  Work& work = *work_;
  LayerObserver* const observers[] = {work.views.get()};
  work.stream = work.model.run_layer(work.layer, work.stream, work.pass,
                                     work.views ? Observers(observers) : Observers());
  if (++work.layer < work.model.config.layers) return;
  work.hidden = work.model.finish(work.stream);
  work.stream = {};
}

const at::Tensor& LayerWalk::hidden() const { return work_->hidden; }

LayerView LayerWalk::take_view() {
  std::optional<LayerView> view = std::exchange(work_->views->view, std::nullopt);
  return std::move(*view);
}

}  // namespace fovea
