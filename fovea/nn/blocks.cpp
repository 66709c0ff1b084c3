// One decoder block in every layout (spec 7.2).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "fovea/nn/transformer_impl.h"

namespace fovea {

at::Tensor Transformer::Impl::feed_forward(const LayerWeights& w, const at::Tensor& z) const {
  const at::Tensor inner = w.gate.defined()
                               ? stacked_linear(z, {w.gate, w.up}, {w.gate_bias, w.up_bias})
                               : stacked_linear(z, {w.up}, {w.up_bias});
  return stacked_linear(activate(config.feed_forward, inner), {w.down}, {w.down_bias});
}

std::pair<at::Tensor, at::Tensor> Transformer::Impl::attention_input(const LayerWeights& w,
                                                                     const Stream& s) const {
  if (config.block == BlockLayout::post || config.block == BlockLayout::output) {
    const at::Tensor x = s.delta.defined() ? s.x + s.delta : s.x;
    return {x, x};
  }
  if (!s.delta.defined())
    return {s.x, normalise(config.norm, s.x, w.attention_in, config.norm_eps)};
  return add_normalise(config.norm, s.x, s.delta, w.attention_in, config.norm_eps);
}

Transformer::Impl::Stream Transformer::Impl::leave_layer(int64_t index, const at::Tensor& x,
                                                         const at::Tensor& y,
                                                         const at::Tensor& attended,
                                                         const PassContext& pass) const {
  const LayerWeights& w = layers[static_cast<size_t>(index)];
  const double p = pass.training ? config.dropout : 0.0;
  const uint64_t site = 2 * static_cast<uint64_t>(index) + 1;
  const auto norm = [&](const at::Tensor& v, const NormWeights& n) {
    return normalise(config.norm, v, n, config.norm_eps);
  };
  const auto add_norm = [&](const at::Tensor& v, const at::Tensor& delta, const NormWeights& n) {
    return add_normalise(config.norm, v, delta, n, config.norm_eps);
  };
  const auto drop = [&](const at::Tensor& v, uint64_t offset) {
    return counter_dropout(v, p, pass.dropout_seed, site + offset);
  };
  const at::Tensor mixed = stacked_linear(attended.transpose(1, 2).flatten(2), {w.wo}, {w.bo});
  switch (config.block) {
    case BlockLayout::pre: {
      const auto [sum, z] = add_norm(x, drop(mixed, 0), w.ffn_in);
      return {sum, drop(feed_forward(w, z), 1)};
    }
    case BlockLayout::post: {
      const at::Tensor z = add_norm(x, drop(mixed, 0), w.attention_out).second;
      return {add_norm(z, drop(feed_forward(w, z), 1), w.ffn_out).second, at::Tensor()};
    }
    case BlockLayout::sandwich: {
      const auto [sum, z] = add_norm(x, drop(norm(mixed, w.attention_out), 0), w.ffn_in);
      return {sum, drop(norm(feed_forward(w, z), w.ffn_out), 1)};
    }
    case BlockLayout::output: {
      const at::Tensor sum = x + drop(norm(mixed, w.attention_out), 0);
      return {sum, drop(norm(feed_forward(w, sum), w.ffn_out), 1)};
    }
    case BlockLayout::parallel:
      return {x, drop(mixed, 0) + drop(feed_forward(w, y), 1)};
    case BlockLayout::parallel_two:
      return {x, drop(mixed, 0) + drop(feed_forward(w, norm(x, w.ffn_in)), 1)};
  }
  return {};
}

at::Tensor Transformer::Impl::finish(const Stream& stream) const {
  if (config.block == BlockLayout::post) return stream.x;  // normed by its last block
  return add_normalise(config.norm, stream.x, stream.delta, final_norm, config.norm_eps).second;
}

at::Tensor Transformer::Impl::embed(const at::Tensor& tokens_bt,
                                    const at::Tensor& positions_bt) const {
  at::Tensor x = at::embedding(embedding, tokens_bt).to(compute.dtype);
  const double scale = config.embedding_scale == 0.0 ? std::sqrt(static_cast<double>(config.width))
                                                     : config.embedding_scale;
  // Rounded to the compute dtype, as Gemma does it (7.4).
  if (scale != 1.0) x = x * at::scalar_tensor(scale, x.options());
  if (config.positions != Positions::learned && config.positions != Positions::sinusoidal) return x;
  const int64_t last = positions_bt.max().item<int64_t>();
  const bool exact = compute.dtype == at::kDouble && config.positions == Positions::sinusoidal;
  at::Tensor table = position_table;
  if (last >= table.size(0) || exact) {
    require<ShapeError>(config.positions == Positions::sinusoidal, "model",
                        "learned positions end at the trained length: expected at most {} tokens "
                        "('model.context'); got {}",
                        config.context, last + 1);
    table = sinusoidal_table(last + 1, config.width, exact ? at::kDouble : at::kFloat).to(device);
  }
  return x + at::embedding(table, positions_bt).to(compute.dtype);
}

}  // namespace fovea
