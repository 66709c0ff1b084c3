// Looking at a model at work: maps, statistics and groups of every layer on one text.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <cmath>
#include <numeric>

#include "fovea/base/error.h"
#include "fovea/nn/transformer_impl.h"

namespace fovea {

std::vector<LayerView> Transformer::look(const ModelInput& input) const {
  const at::NoGradGuard no_grad;
  impl_->check(input);
  require<ShapeError>(input.tokens_bt.size(0) == 1, "model", "look() takes one text; got {} rows",
                      input.tokens_bt.size(0));
  const PassContext pass = impl_->make_pass(input);
  std::vector<int64_t> rows(static_cast<size_t>(input.tokens_bt.size(1)));
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<LayerView> views;
  Impl::Stream stream{impl_->embed(input.tokens_bt, pass.positions), at::Tensor()};
  for (int64_t i = 0; i < impl_->config.layers; ++i) {
    const AttentionInput in = impl_->enter_layer(i, stream, pass);
    std::vector<int64_t> heads(static_cast<size_t>(in.spec.output_heads()));
    std::iota(heads.begin(), heads.end(), 0);
    AttentionContext context = pass.attention;
    context.layer = i;
    LayerView view{.spec = in.spec, .groups = in.groups, .temperature = in.temperature};
    view.weights_htt = attention_rows(in.spec, in.heads.q_bhtd, in.heads.k_bgtd, in.tensors,
                                      context, heads, rows)[0];
    view.stats = attention_stats(in.spec, in.heads.q_bhtd, in.heads.k_bgtd, in.tensors, context);
    views.push_back(std::move(view));
    const at::Tensor out = attention(in.spec, in.heads.q_bhtd, in.heads.k_bgtd, in.heads.v_bgtd,
                                     in.tensors, context, impl_->compute.attention_path)
                               .out_bhte;
    stream = impl_->leave_layer(i, in.x, in.y, out, pass);
  }
  return views;
}

}  // namespace fovea
