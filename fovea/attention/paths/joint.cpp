// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/paths/joint.h"

#include <ATen/ATen.h>

#include "fovea/attention/backend.h"

namespace fovea {
namespace {

// All tokens of a block's key heads, by its rows of a batch.
at::Tensor keys_of_batch(const at::Tensor& x, const JointBlock& block) {
  const at::Tensor keys = x.narrow(1, block.kv_head, block.kv_heads);
  if (block.classes == 1) return keys.narrow(0, block.row, block.rows);
  return keys.narrow(0, block.row, 1).expand({block.classes, -1, -1, -1});
}

// One call's tensors, and their parts for its blocks.
struct Operands {
  at::Tensor q, k, v, few_q, tau_bt, sink_h;

  int64_t repeats() const { return q.size(1) / k.size(1); }
};

FusedOperands of_block(const Operands& x, const JointBlock& block) {
  const int64_t n = x.repeats(), head = block.kv_head * n, heads = block.kv_heads * n;
  const at::Tensor none = at::empty({0}, x.q.options().dtype(at::kFloat));
  FusedOperands part{.q = tokens_of(x.q, block, block.queries, head, heads),
                     .k = tokens_of(x.k, block, block.keys, block.kv_head, block.kv_heads),
                     .v = tokens_of(x.v, block, block.keys, block.kv_head, block.kv_heads),
                     .tau_bt = none,
                     .bias_hn = none,
                     .sink_h = none,
                     .gate_btk = none,
                     .gate_bsk = none};
  if (x.tau_bt.numel() > 0)
    part.tau_bt =
        tokens_of(x.tau_bt.unsqueeze(1), block, block.queries, 0, 1).squeeze(1).contiguous();
  if (x.sink_h.numel() > 0) part.sink_h = x.sink_h.narrow(0, head, heads).contiguous();
  return part;
}

// What a block's rows read of the few keys, and where these lie. The rows of a batch are alike;
// those of classes are tokens of one text.
FusedFew few_of(const JointCall& call, const Operands& x, const JointBlock& block) {
  const int64_t n = x.repeats(), heads = block.kv_heads * n,
                batch = std::max(block.rows, block.classes);
  FusedFew few{.q = tokens_of(x.few_q, block, block.queries, block.kv_head * n, heads),
               .k = keys_of_batch(x.k, block),
               .v = keys_of_batch(x.v, block),
               .key_rows = call.few.key_rows,
               .seen = {},
               .set_bh = {},
               .own_queries = !x.few_q.is_same(x.q)};
  for (const std::vector<uint64_t>& set : call.few.seen) {
    for (int64_t c = 0; c < block.classes; ++c)
      for (int64_t i = 0; i < block.queries.count; ++i)
        few.seen.push_back(set[block.queries.first + c + i * block.queries.step]);
  }
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t set = call.few.set_of_head[block.kv_head * n + h];
      few.set_bh.push_back(static_cast<int32_t>(set * block.classes + b % block.classes));
    }
  }
  return few;
}

// What the gradient is made of: results of the whole softmax, and their gradients.
using Results = FusedResults;

struct Gradients {
  at::Tensor q, k, v, few_q, tau_bht, sink_h;
  at::Tensor few_k, few_v;  // [b, g, few keys, width filled up] in float32
};

void block_forward(const JointCall& call, const Operands& x, const JointBlock& block,
                   const at::Tensor& out, const at::Tensor& rest, const at::Tensor& lse) {
  const FusedOperands part = of_block(x, block);
  const FusedFew few = few_of(call, x, block);
  const int64_t head = block.kv_head * x.repeats(), heads = part.q.size(1);
  const at::Tensor to = tokens_of(lse, block, block.queries, head, heads);
  const at::Tensor own = to.is_contiguous() ? to : at::empty(to.sizes(), to.options());
  fused_forward_into(*block.call, part, few.key_rows.empty() ? nullptr : &few,
                     tokens_of(out, block, block.queries, head, heads),
                     rest.defined() ? tokens_of(rest, block, block.queries, head, heads) : rest,
                     own);
  if (!to.is_contiguous()) to.copy_(own);
}

// Adds a block's part to the few keys' gradients: of all its classes, or of its rows of the batch.
void add_few(const at::Tensor& part, const JointBlock& block, const at::Tensor& sums) {
  const at::Tensor to = sums.narrow(0, block.row, block.classes > 1 ? 1 : block.rows)
                            .narrow(1, block.kv_head, block.kv_heads);
  to.add_(block.classes > 1 ? part.sum(0, true) : part);
}

void block_backward(const JointCall& call, const Operands& x, const JointBlock& block,
                    const Results& r, const Gradients& g) {
  const FusedOperands part = of_block(x, block);
  const FusedFew few = few_of(call, x, block);
  const int64_t head = block.kv_head * x.repeats(), heads = part.q.size(1);
  const auto of_queries = [&](const at::Tensor& t) {
    return tokens_of(t, block, block.queries, head, heads);
  };
  const auto of_keys = [&](const at::Tensor& t) {
    return tokens_of(t, block, block.keys, block.kv_head, block.kv_heads);
  };
  const auto options = r.lse.options();
  const auto of_few = [&](const at::Tensor& sums) {
    return at::empty({part.q.size(0), block.kv_heads, sums.size(2), sums.size(3)}, options);
  };
  FusedGradients own{.q = of_queries(g.q), .k = of_keys(g.k), .v = of_keys(g.v)};
  FusedFewGradients own_few{.q = {}, .k = of_few(g.few_k), .v = of_few(g.few_v), .tau_bht = {}};
  if (few.own_queries) own_few.q = of_queries(g.few_q);
  if (g.tau_bht.defined())
    for (at::Tensor* tau : {&own.tau_bht, &own_few.tau_bht})
      *tau = at::empty(part.q.sizes().slice(0, 3), options);
  if (g.sink_h.defined()) own.sink_bh = at::empty(part.q.sizes().slice(0, 2), options);
  fused_backward_into(*block.call, part,
                      {of_queries(r.out), of_queries(r.lse).contiguous(), of_queries(r.dout),
                       r.dlse.defined() ? of_queries(r.dlse).contiguous() : r.dlse,
                       r.rest.defined() ? of_queries(r.rest) : r.rest},
                      own, few.key_rows.empty() ? nullptr : &few, &own_few);
  if (!few.key_rows.empty()) add_few(own_few.k, block, g.few_k);
  if (!few.key_rows.empty()) add_few(own_few.v, block, g.few_v);
  if (g.tau_bht.defined() && few.own_queries) own.tau_bht.add_(own_few.tau_bht);
  if (g.tau_bht.defined()) of_queries(g.tau_bht).copy_(own.tau_bht);
  if (g.sink_h.defined()) g.sink_h.narrow(0, head, heads).add_(own.sink_bh.sum(0));
}

// Joins the few keys' own part to the gradient of all keys.
void add_few_keys(const std::vector<int64_t>& key_rows, const at::Tensor& sums,
                  const at::Tensor& to) {
  const at::Tensor rows = at::tensor(key_rows, at::kLong);
  const at::Tensor total =
      to.index_select(2, rows).to(at::kFloat).add_(sums.narrow(3, 0, to.size(3)));
  to.index_copy_(2, rows, total.to(to.scalar_type()));
}

at::Tensor few_sums(const at::Tensor& x, const JointCall& call, const at::TensorOptions& options) {
  return at::zeros(
      {x.size(0), x.size(1), std::ssize(call.few.key_rows), kernels::few_pitch(x.size(3))},
      options);
}

// So far above every logit that weights are 0; finite, because the kernels take a row whose lse is
// not for a broken one.
constexpr double kNoWeights = 1e30;

// For rows that the blocks shall not count.
at::Tensor lse_without(const at::Tensor& lse, const std::vector<int64_t>& rows) {
  return rows.empty() ? lse : lse.index_fill(2, at::tensor(rows, at::kLong), kNoWeights);
}

// The rows of few_rows, of all rows.
FewRowsOperands few_rows_of(const Operands& x, const at::Tensor& rows) {
  return {.q_bhnd = x.q.index_select(2, rows),
          .k_bgsd = x.k,
          .v_bgse = x.v,
          .tau_bn = x.tau_bt.numel() > 0 ? x.tau_bt.index_select(1, rows) : x.tau_bt,
          .sink_h = x.sink_h};
}

// Their gradients join those of the blocks; `r` has the lse that the forward pass found.
void few_rows_gradient(const JointCall& call, const Operands& x, const Results& r,
                       const Gradients& g) {
  const at::Tensor rows = at::tensor(call.known, at::kLong);
  const auto of = [&](const at::Tensor& t) { return t.defined() ? t.index_select(2, rows) : t; };
  const FewRowsOperands few = few_rows_of(x, rows);
  FusedGradients own{.q = at::empty_like(few.q_bhnd), .k = g.k, .v = g.v};
  if (g.tau_bht.defined()) own.tau_bht = of(g.tau_bht);
  few_rows_backward(*call.few_rows, few, {of(r.out), of(r.lse), of(r.dout), of(r.dlse), of(r.rest)},
                    own, KeyGradients::added);
  g.q.index_copy_(2, rows, own.q);
  if (g.tau_bht.defined()) g.tau_bht.index_copy_(2, rows, own.tau_bht);
  if (g.sink_h.defined()) g.sink_h.add_(own.sink_bh);
}

// Of the first inputs of a call.
Operands joint_operands(const Operation::Tensors& list) {
  Operands x{.q = contiguous_rows(list[0]),
             .k = contiguous_rows(list[1]),
             .v = contiguous_rows(list[2]),
             .few_q = {},
             .tau_bt = list[4],
             .sink_h = list[5]};
  x.few_q = list[3].numel() > 0 ? contiguous_rows(list[3]) : x.q;
  return x;
}

}  // namespace

Operation::Tensors JointCall::forward(const Tensors& inputs, Tensors& kept) const {
  const Operands x = joint_operands(inputs);
  const at::Tensor& q = x.q;
  const at::Tensor out =
      empty_by_token({q.size(0), q.size(1), q.size(2), x.v.size(3)}, q.options());
  const at::Tensor lse =
      at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
  const at::Tensor rest = rest_like(out, keeps_rest);
  for (const JointBlock& block : blocks) block_forward(*this, x, block, out, rest, lse);
  if (!known.empty()) {
    const at::Tensor rows = at::tensor(known, at::kLong);
    AttentionResult of_rows{.out_bhte = inputs[6], .lse_bht = inputs[7]};
    at::Tensor known_rest;
    if (few_rows) of_rows = few_rows_forward(*few_rows, few_rows_of(x, rows), known_rest);
    out.index_copy_(2, rows, of_rows.out_bhte);
    lse.index_copy_(2, rows, of_rows.lse_bht);
    if (rest.defined()) rest.index_fill_(2, rows, 0.0);
    if (rest.defined() && known_rest.defined()) rest.index_copy_(2, rows, known_rest);
  }
  kept = {inputs.begin(), inputs.begin() + 6};
  kept.insert(kept.end(), {out, lse, rest});
  return {out, lse};
}

Operation::Tensors JointCall::backward(const Tensors& s, const Tensors& grads,
                                       const std::vector<bool>& /*wanted*/) const {
  const Operands x = joint_operands(s);
  Results r = results_of(s[6], lse_without(s[7], known), grads, s[8]);
  Gradients g{.q = empty_by_token(x.q.sizes().vec(), x.q.options()),
              .k = empty_by_token(x.k.sizes().vec(), x.k.options()),
              .v = empty_by_token(x.v.sizes().vec(), x.v.options())};
  if (s[3].numel() > 0) g.few_q = empty_by_token(x.q.sizes().vec(), x.q.options());
  g.few_k = few_sums(x.k, *this, r.lse.options());
  g.few_v = few_sums(x.v, *this, r.lse.options());
  if (s[4].numel() > 0) g.tau_bht = at::empty(r.lse.sizes(), r.lse.options());
  if (s[5].numel() > 0) g.sink_h = at::zeros_like(s[5]);
  for (const JointBlock& block : blocks) block_backward(*this, x, block, r, g);
  add_few_keys(few.key_rows, g.few_k, g.k);
  add_few_keys(few.key_rows, g.few_v, g.v);
  at::Tensor known_out, known_lse;
  if (few_rows) {
    r.lse = s[7];
    few_rows_gradient(*this, x, r, g);
  } else if (!known.empty()) {
    const at::Tensor rows = at::tensor(known, at::kLong);
    known_out = r.dout.index_select(2, rows);
    if (r.dlse.defined()) known_lse = r.dlse.index_select(2, rows);
  }
  return {
      g.q,      g.k,       g.v,      g.few_q, g.tau_bht.defined() ? g.tau_bht.sum(1) : g.tau_bht,
      g.sink_h, known_out, known_lse};
}

at::Tensor tokens_of(const at::Tensor& x, const JointBlock& block, const TokenSteps& tokens,
                     int64_t head, int64_t heads) {
  std::vector<int64_t> sizes = x.sizes().vec(), strides = x.strides().vec();
  const int64_t token = strides[2];
  sizes[0] = block.classes > 1 ? block.classes : block.rows;
  if (block.classes > 1) strides[0] = token;
  sizes[1] = heads;
  sizes[2] = tokens.count;
  strides[2] = tokens.step * token;
  return x.as_strided(
      sizes, strides,
      x.storage_offset() + block.row * x.stride(0) + head * x.stride(1) + tokens.first * token);
}

JointBlock whole_block(const AttentionCall& part) {
  JointBlock block{.rows = part.q.size(0),
                   .kv_heads = part.spec.kv_heads,
                   .queries = {.count = part.q.size(2)},
                   .keys = {.count = part.k.size(2)},
                   .call = fused_call(part)};
  block.call->visits = visits_of(part);
  return block;
}

AttentionResult run_joint(const JointOperands& given, c10::intrusive_ptr<JointCall> call) {
  const at::ScalarType dtype = given.q_bhtd.scalar_type(), kernel = kernel_dtype(dtype);
  const auto wants = [](const at::Tensor& x) { return x.defined() && x.requires_grad(); };
  call->keeps_rest = at::GradMode::is_enabled() &&
                     (wants(given.q_bhtd) || wants(given.k_bgsd) || wants(given.v_bgse) ||
                      wants(given.few_q_bhtd) || wants(given.tau_bt) || wants(given.sink_h));
  const at::Tensor none = at::empty({0}, given.q_bhtd.options().dtype(at::kFloat));
  const auto as = [&none](const at::Tensor& x, at::ScalarType type) {
    return x.defined() ? x.to(type) : none;
  };
  const Operation::Tensors outputs = run_operation(
      std::move(call), {as(given.q_bhtd, kernel), as(given.k_bgsd, kernel),
                        as(given.v_bgse, kernel), as(given.few_q_bhtd, kernel),
                        floats_or_none(given.tau_bt, none), floats_or_none(given.sink_h, none),
                        as(given.known_out_bhne, kernel), as(given.known_lse_bhn, at::kFloat)});
  return kernel_result(outputs[0], outputs[1], dtype);
}

}  // namespace fovea
