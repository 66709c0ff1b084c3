// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/paths/joint.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "fovea/attention/kernel_types.h"
#include "fovea/kernels/cpu/few_keys.h"

namespace fovea {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const float* floats_or_null(const at::Tensor& x) {
  return x.numel() > 0 ? x.const_data_ptr<float>() : nullptr;
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

std::vector<const uint64_t*> seen_by_head(const JointFew& few) {
  std::vector<const uint64_t*> seen;
  for (const int64_t set : few.set_of_head) seen.push_back(few.seen[set].data());
  return seen;
}

kernels::AttentionSizes sizes_of_few(const Operands& x, const JointFew& few) {
  kernels::AttentionSizes sizes = sizes_of({.q = x.q, .k = x.k, .v = x.v});
  sizes.keys = std::ssize(few.key_rows);
  return sizes;
}

template <class T>
void join_few(const JointCall& call, const Operands& x, const at::Tensor& out,
              const at::Tensor& lse) {
  const std::vector<const uint64_t*> seen = seen_by_head(call.few);
  kernels::run(kernels::FewKeys<T>{.sizes = sizes_of_few(x, call.few),
                                   .q = rows_of<T>(x.few_q),
                                   .k = rows_of<T>(x.k),
                                   .v = rows_of<T>(x.v),
                                   .key_rows = call.few.key_rows.data(),
                                   .seen = seen.data(),
                                   .scale = call.scale,
                                   .tau = floats_or_null(x.tau_bt),
                                   .soft_cap = call.soft_cap,
                                   .out = writable_rows_of<T>(out),
                                   .lse = lse.mutable_data_ptr<float>()});
}

// What the gradient is made of: results of the whole softmax, and their gradients.
struct Results {
  at::Tensor out, lse, dout, dlse;
};

struct Gradients {
  at::Tensor q, k, v, few_q, tau_bht, sink_h;
};

template <class T>
void few_gradient(const JointCall& call, const Operands& x, const Results& r, const Gradients& g) {
  const std::vector<const uint64_t*> seen = seen_by_head(call.few);
  kernels::run(kernels::FewKeysGradient<T>{
      .sizes = sizes_of_few(x, call.few),
      .q = rows_of<T>(x.few_q),
      .k = rows_of<T>(x.k),
      .v = rows_of<T>(x.v),
      .out = rows_of<T>(r.out),
      .dout = rows_of<T>(r.dout),
      .key_rows = call.few.key_rows.data(),
      .seen = seen.data(),
      .scale = call.scale,
      .tau = floats_or_null(x.tau_bt),
      .soft_cap = call.soft_cap,
      .lse = r.lse.const_data_ptr<float>(),
      .dlse = r.dlse.defined() ? r.dlse.const_data_ptr<float>() : nullptr,
      .dq = writable_rows_of<T>(g.few_q),
      .dk = writable_rows_of<T>(g.k),
      .dv = writable_rows_of<T>(g.v),
      .dtau = g.tau_bht.defined() ? g.tau_bht.mutable_data_ptr<float>() : nullptr});
}

void block_forward(const Operands& x, const JointBlock& block, const at::Tensor& out,
                   const at::Tensor& lse) {
  const FusedOperands part = of_block(x, block);
  const int64_t head = block.kv_head * x.repeats(), heads = part.q.size(1);
  const at::Tensor to = tokens_of(lse, block, block.queries, head, heads);
  const at::Tensor own = to.is_contiguous() ? to : at::empty(to.sizes(), to.options());
  fused_forward_into(*block.call, part, tokens_of(out, block, block.queries, head, heads), own);
  if (!to.is_contiguous()) to.copy_(own);
}

void block_backward(const Operands& x, const JointBlock& block, const Results& r,
                    const Gradients& g) {
  const FusedOperands part = of_block(x, block);
  const int64_t head = block.kv_head * x.repeats(), heads = part.q.size(1);
  const auto of_queries = [&](const at::Tensor& t) {
    return tokens_of(t, block, block.queries, head, heads);
  };
  const auto of_keys = [&](const at::Tensor& t) {
    return tokens_of(t, block, block.keys, block.kv_head, block.kv_heads);
  };
  FusedGradients own{.q = of_queries(g.q), .k = of_keys(g.k), .v = of_keys(g.v)};
  const auto options = r.lse.options();
  if (g.tau_bht.defined()) own.tau_bht = at::empty(part.q.sizes().slice(0, 3), options);
  if (g.sink_h.defined()) own.sink_bh = at::empty(part.q.sizes().slice(0, 2), options);
  fused_backward_into(*block.call, part, of_queries(r.out), of_queries(r.lse).contiguous(),
                      of_queries(r.dout),
                      r.dlse.defined() ? of_queries(r.dlse).contiguous() : r.dlse, own);
  if (g.tau_bht.defined()) of_queries(g.tau_bht).copy_(own.tau_bht);
  if (g.sink_h.defined()) g.sink_h.narrow(0, head, heads).add_(own.sink_bh.sum(0));
}

// So far above every logit that weights are 0; finite, because the kernels take a row whose lse is
// not for a broken one.
constexpr double kNoWeights = 1e30;

// For rows that the blocks shall not count.
at::Tensor lse_without(const at::Tensor& lse, const std::vector<int64_t>& rows) {
  return rows.empty() ? lse : lse.index_fill(2, at::tensor(rows, at::kLong), kNoWeights);
}

// Inputs as JointOperands has them, empty tensors where there is none.
class JointAttention : public torch::autograd::Function<JointAttention> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const at::Tensor& few_q, const at::Tensor& tau,
                               const at::Tensor& sink, const at::Tensor& known_out,
                               const at::Tensor& known_lse,
                               const c10::intrusive_ptr<JointCall>& call) {
    const Operands x = operands(q, k, v, few_q, tau, sink);
    const at::Tensor out =
        empty_by_token({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
    const at::Tensor lse =
        at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
    for (const JointBlock& block : call->blocks) block_forward(x, block, out, lse);
    with_kernel_type(q.scalar_type(), "attention",
                     [&]<class T>(T) { join_few<T>(*call, x, out, lse); });
    if (!call->known.empty()) {
      const at::Tensor rows = at::tensor(call->known, at::kLong);
      out.index_copy_(2, rows, known_out);
      lse.index_copy_(2, rows, known_lse);
    }
    ctx->save_for_backward({q, k, v, few_q, tau, sink, out, lse});
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    ctx->set_materialize_grads(false);
    return {out, lse};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto s = ctx->get_saved_variables();
    const auto call =
        c10::static_intrusive_pointer_cast<JointCall>(ctx->saved_data["call"].toCapsule());
    const Operands x = operands(s[0], s[1], s[2], s[3], s[4], s[5]);
    const at::Tensor& out = s[6];
    const Results r{.out = out,
                    .lse = lse_without(s[7], call->known),
                    .dout = grads[0].defined() ? contiguous_rows(grads[0].to(out.scalar_type()))
                                               : at::zeros_like(out),
                    .dlse = grads[1].defined() ? grads[1].to(at::kFloat).contiguous() : grads[1]};
    Gradients g{.q = empty_by_token(x.q.sizes().vec(), x.q.options()),
                .k = empty_by_token(x.k.sizes().vec(), x.k.options()),
                .v = empty_by_token(x.v.sizes().vec(), x.v.options())};
    g.few_q = s[3].numel() > 0 ? at::zeros_like(g.q) : g.q;
    if (s[4].numel() > 0) g.tau_bht = at::empty(r.lse.sizes(), r.lse.options());
    if (s[5].numel() > 0) g.sink_h = at::zeros_like(s[5]);
    const TokenSteps& hidden = call->hidden_keys;
    for (const at::Tensor& t : {g.k, g.v}) t.narrow(2, hidden.first, hidden.count).zero_();
    for (const JointBlock& block : call->blocks) block_backward(x, block, r, g);
    with_kernel_type(x.q.scalar_type(), "attention",
                     [&]<class T>(T) { few_gradient<T>(*call, x, r, g); });
    at::Tensor known_out, known_lse;
    if (!call->known.empty()) {
      const at::Tensor rows = at::tensor(call->known, at::kLong);
      known_out = r.dout.index_select(2, rows);
      if (r.dlse.defined()) known_lse = r.dlse.index_select(2, rows);
    }
    return {g.q,
            g.k,
            g.v,
            s[3].numel() > 0 ? g.few_q : at::Tensor(),
            g.tau_bht.defined() ? g.tau_bht.sum(1) : g.tau_bht,
            g.sink_h,
            known_out,
            known_lse,
            {}};
  }

 private:
  static Operands operands(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const at::Tensor& few_q, const at::Tensor& tau, const at::Tensor& sink) {
    Operands x{.q = contiguous_rows(q),
               .k = contiguous_rows(k),
               .v = contiguous_rows(v),
               .few_q = {},
               .tau_bt = tau,
               .sink_h = sink};
    x.few_q = few_q.numel() > 0 ? contiguous_rows(few_q) : x.q;
    return x;
  }
};

// The part's spec and places, without tensors that have gradients.
struct FewRowsCall : torch::CustomClassHolder {
  AttentionCall part;
  std::vector<uint64_t> seen;
};

// Inputs q, k, v, tau [b, n], sink [h] (empty tensors where absent); outputs out and lse.
class FewRowsAttention : public torch::autograd::Function<FewRowsAttention> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const at::Tensor& tau, const at::Tensor& sink,
                               const c10::intrusive_ptr<FewRowsCall>& few) {
    AttentionCall part = few->part;
    part.q = q, part.k = k, part.v = v;
    if (tau.numel() > 0) part.tensors.tau_bt = tau;
    if (sink.numel() > 0) part.tensors.sink_logit_h = sink;
    const AttentionResult result = run_part(part);
    const at::Tensor out = result.out_bhte.to(q.scalar_type()), lse = result.lse_bht.contiguous();
    ctx->save_for_backward({q, k, v, tau, sink, out, lse});
    ctx->saved_data["call"] = c10::IValue::make_capsule(few);
    ctx->set_materialize_grads(false);
    return {out, lse};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto s = ctx->get_saved_variables();
    const auto few =
        c10::static_intrusive_pointer_cast<FewRowsCall>(ctx->saved_data["call"].toCapsule());
    const Operands x{.q = contiguous_rows(s[0]),
                     .k = contiguous_rows(s[1]),
                     .v = contiguous_rows(s[2]),
                     .few_q = {},
                     .tau_bt = s[3],
                     .sink_h = s[4]};
    const Results r{.out = s[5],
                    .lse = s[6],
                    .dout = grads[0].defined() ? contiguous_rows(grads[0].to(s[5].scalar_type()))
                                               : at::zeros_like(s[5]),
                    .dlse = grads[1].defined() ? grads[1].contiguous() : grads[1]};
    Gradients g{.q = at::empty_like(x.q),
                .k = empty_by_token(x.k.sizes().vec(), x.k.options()),
                .v = empty_by_token(x.v.sizes().vec(), x.v.options())};
    if (x.tau_bt.numel() > 0) g.tau_bht = at::empty(r.lse.sizes(), r.lse.options());
    with_kernel_type(x.q.scalar_type(), "attention",
                     [&]<class T>(T) { gradient<T>(*few, x, r, g); });
    if (x.sink_h.numel() > 0) {  // a key with value 0
      at::Tensor delta = (r.out.to(at::kFloat) * r.dout).sum(-1);
      if (r.dlse.defined()) delta = delta - r.dlse;
      g.sink_h = -((x.sink_h.view({1, -1, 1}) - r.lse).exp() * delta).sum(at::IntArrayRef{0, 2});
    }
    return {g.q, g.k, g.v, g.tau_bht.defined() ? g.tau_bht.sum(1) : g.tau_bht, g.sink_h, {}};
  }

 private:
  template <class T>
  static void gradient(const FewRowsCall& few, const Operands& x, const Results& r,
                       const Gradients& g) {
    kernels::run(kernels::FewQueriesGradient<T>{
        .sizes = sizes_of({.q = x.q, .k = x.k, .v = x.v}),
        .q = rows_of<T>(x.q),
        .k = rows_of<T>(x.k),
        .v = rows_of<T>(x.v),
        .out = rows_of<T>(r.out),
        .dout = rows_of<T>(r.dout),
        .seen = few.seen.data(),
        .scale = static_cast<float>(few.part.spec.logit_scale()),
        .tau = floats_or_null(x.tau_bt),
        .soft_cap = static_cast<float>(few.part.spec.soft_cap),
        .lse = r.lse.const_data_ptr<float>(),
        .dlse = r.dlse.defined() ? r.dlse.const_data_ptr<float>() : nullptr,
        .dq = writable_rows_of<T>(g.q),
        .dk = writable_rows_of<T>(g.k),
        .dv = writable_rows_of<T>(g.v),
        .dtau = g.tau_bht.defined() ? g.tau_bht.mutable_data_ptr<float>() : nullptr});
  }
};

// float32 for float16, which the kernels do not have.
at::ScalarType kernel_dtype(at::ScalarType dtype) {
  return dtype == at::kHalf ? at::kFloat : dtype;
}

// As a contiguous row of floats, or an empty tensor.
at::Tensor floats_or_none(const at::Tensor& x, const at::Tensor& like) {
  return x.defined() ? x.to(at::kFloat).contiguous()
                     : at::empty({0}, like.options().dtype(at::kFloat));
}

}  // namespace

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
  const at::Tensor none = at::empty({0}, given.q_bhtd.options().dtype(at::kFloat));
  const auto as = [&none](const at::Tensor& x, at::ScalarType type) {
    return x.defined() ? x.to(type) : none;
  };
  const variable_list outputs = JointAttention::apply(
      as(given.q_bhtd, kernel), as(given.k_bgsd, kernel), as(given.v_bgse, kernel),
      as(given.few_q_bhtd, kernel), floats_or_none(given.tau_bt, none),
      floats_or_none(given.sink_h, none), as(given.known_out_bhne, kernel),
      as(given.known_lse_bhn, at::kFloat), std::move(call));
  AttentionResult result;
  result.out_bhte = outputs[0].to(dtype);
  result.lse_bht = outputs[1];
  result.path.isa = kernel_isa(kernel);
  return result;
}

AttentionResult run_few_rows(const AttentionCall& part, std::vector<uint64_t> seen) {
  const at::ScalarType dtype = part.q.scalar_type(), kernel = kernel_dtype(dtype);
  auto few = c10::make_intrusive<FewRowsCall>();
  few->part = part;
  few->seen = std::move(seen);
  AttentionCall& kept = few->part;
  kept.q = kept.k = kept.v = kept.tensors.tau_bt = kept.tensors.sink_logit_h = at::Tensor();
  const variable_list outputs =
      FewRowsAttention::apply(part.q.to(kernel), part.k.to(kernel), part.v.to(kernel),
                              floats_or_none(part.tensors.tau_bt, part.q),
                              floats_or_none(part.tensors.sink_logit_h, part.q), std::move(few));
  AttentionResult result;
  result.out_bhte = outputs[0].to(dtype);
  result.lse_bht = outputs[1];
  result.path.isa = kernel_isa(kernel);
  return result;
}

}  // namespace fovea
