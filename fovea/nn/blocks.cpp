// One decoder block in every layout (spec 7.2).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <tuple>

#include "fovea/nn/matrix.h"
#include "fovea/nn/transformer_impl.h"

namespace fovea {
namespace {

// Outputs of a layer's site, as its weight has them.
int64_t site_width(const LayerWeights& w, LoraSite site) {
  switch (site) {
    case LoraSite::q_proj:
      return w.wq.size(0);
    case LoraSite::k_proj:
      return w.wk.size(0);
    case LoraSite::v_proj:
      return w.wv.size(0);
    case LoraSite::qkv_proj:
      return w.wq.size(0) + w.wk.size(0) + w.wv.size(0);
    case LoraSite::o_proj:
      return w.wo.size(0);
    case LoraSite::gate_proj:
      return w.gate.size(0);
    case LoraSite::up_proj:
      return w.up.size(0);
    case LoraSite::down_proj:
      break;
  }
  return w.down.size(0);
}

}  // namespace

at::Tensor Transformer::Impl::adapted(const LayerWeights& w, std::initializer_list<LoraSite> sites,
                                      const at::Tensor& y, const at::Tensor& x,
                                      const PassContext& pass) const {
  const auto product = [&](LoraSite site) {
    const LoraAdapter& adapter = w.lora[static_cast<size_t>(site)];
    return adapter.defined() ? lora_product(adapter, x, pass.training ? config.lora.dropout : 0.0,
                                            pass.dropout_seed)
                             : at::Tensor();
  };
  std::vector<at::Tensor> deltas;
  bool any = false;
  for (const LoraSite site : sites) {
    deltas.push_back(product(site));
    any = any || deltas.back().defined();
  }
  if (!any) return y;
  if (deltas.size() == 1) return y + deltas[0];
  std::vector<int64_t> widths;
  for (const LoraSite site : sites) widths.push_back(site_width(w, site));
  std::vector<at::Tensor> parts = y.split_with_sizes(widths, -1);
  for (size_t n = 0; n < parts.size(); ++n) {
    if (deltas[n].defined()) parts[n] = parts[n] + deltas[n];
  }
  return at::cat(parts, -1);
}

at::Tensor Transformer::Impl::feed_forward(const LayerWeights& w, const at::Tensor& z,
                                           const PassContext& pass) const {
  at::Tensor inner;
  if (w.gate.defined()) {
    inner = adapted(
        w, {LoraSite::gate_proj, LoraSite::up_proj},
        stacked_linear(z, {w.gate, w.up}, {w.gate_bias, w.up_bias}, compute.activations), z, pass);
  } else {
    inner = adapted(w, {LoraSite::up_proj},
                    stacked_linear(z, {w.up}, {w.up_bias}, compute.activations), z, pass);
  }
  const at::Tensor active = activate(w.block.activation, w.block.gated, inner);
  return adapted(w, {LoraSite::down_proj},
                 stacked_linear(active, {w.down}, {w.down_bias}, compute.activations), active,
                 pass);
}

std::pair<at::Tensor, at::Tensor> Transformer::Impl::attention_input(const LayerWeights& w,
                                                                     const Stream& s) const {
  if (!w.block.norms.attention_in) {
    const at::Tensor x = s.delta.defined() ? s.x + s.delta : s.x;
    return {x, x};
  }
  const NormWeights in = scaled(w.attention_in, w.block.norm_factor, s.x);
  if (!s.delta.defined()) return {s.x, normalise(config.norm, s.x, in, config.norm_eps)};
  return add_normalise(config.norm, s.x, s.delta, in, config.norm_eps);
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
  const at::Tensor heads = attended.transpose(1, 2).flatten(2);
  const at::Tensor mixed =
      adapted(w, {LoraSite::o_proj}, stacked_linear(heads, {w.wo}, {w.bo}, compute.activations),
              heads, pass);
  const NormPlaces& norms = w.block.norms;
  const NormWeights ffn_in =
      norms.ffn_in ? scaled(w.ffn_in, w.block.norm_factor, x) : NormWeights();
  switch (w.block.join) {
    case kernels::BlockJoin::sum: {
      const at::Tensor z = add_norm(x, drop(mixed, 0), w.attention_out).second;
      return {add_norm(z, drop(feed_forward(w, z, pass), 1), w.ffn_out).second, at::Tensor()};
    }
    case kernels::BlockJoin::parallel: {
      const at::Tensor z = norms.ffn_in ? norm(x, ffn_in) : y;
      return {x, drop(mixed, 0) + drop(feed_forward(w, z, pass), 1)};
    }
    case kernels::BlockJoin::delta:
      break;
  }
  const at::Tensor delta = drop(norms.attention_out ? norm(mixed, w.attention_out) : mixed, 0);
  at::Tensor sum, z;
  if (norms.ffn_in) {
    std::tie(sum, z) = add_norm(x, delta, ffn_in);
  } else {
    sum = z = x + delta;
  }
  const at::Tensor fed = feed_forward(w, z, pass);
  return {sum, drop(norms.ffn_out ? norm(fed, w.ffn_out) : fed, 1)};
}

at::Tensor Transformer::Impl::finish(const Stream& stream) const {
  if (config.block == BlockLayout::post) return stream.x;  // normed by its last block
  return add_normalise(config.norm, stream.x, stream.delta, final_norm, config.norm_eps).second;
}

/// The rows of a table, which may be packed.
static at::Tensor embedded(const at::Tensor& table, const at::Tensor& tokens_bt) {
  if (!is_packed(table)) return at::embedding(table, tokens_bt);
  std::vector<int64_t> sizes = tokens_bt.sizes().vec();
  sizes.push_back(matrix_inputs(table));
  return unpacked(table.index_select(0, tokens_bt.flatten()), at::kFloat).view(sizes);
}

at::Tensor Transformer::Impl::embed(const at::Tensor& tokens_bt, const at::Tensor& positions_bt,
                                    int64_t last) const {
  at::Tensor x = embedded(embedding, tokens_bt).to(compute.dtype);
  const double scale = config.embedding_scale == 0.0 ? std::sqrt(static_cast<double>(config.width))
                                                     : config.embedding_scale;
  // Rounded to the compute dtype, as Gemma does it (7.4).
  if (scale != 1.0) x = x * at::scalar_tensor(scale, x.options());
  if (config.positions != Positions::learned && config.positions != Positions::sinusoidal) return x;
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
