// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/paths/few_rows.h"

#include <ATen/ATen.h>

#include "fovea/attention/backend.h"

namespace fovea {
namespace {

template <class T>
void key_and_query_gradients(const FewRowsCall& call, const FewRowsOperands& x,
                             const FusedResults& r, const FusedGradients& g, KeyGradients keys) {
  backend_for(x.q_bhnd).run(kernels::FewQueriesGradient<T>{
      .sizes = sizes_of({.q = x.q_bhnd, .k = x.k_bgsd, .v = x.v_bgse}),
      .q = rows_of<T>(x.q_bhnd),
      .k = rows_of<T>(x.k_bgsd),
      .v = rows_of<T>(x.v_bgse),
      .out = rows_of<T>(r.out),
      .out_rest = r.rest.defined() ? rows_of<T>(r.rest) : kernels::HeadRows<const T>{},
      .dout = rows_of<T>(r.dout),
      .seen = call.seen.data(),
      .scale = static_cast<float>(call.part.spec.logit_scale()),
      .tau = x.tau_bn.numel() > 0 ? x.tau_bn.const_data_ptr<float>() : nullptr,
      .soft_cap = static_cast<float>(call.part.spec.soft_cap),
      .lse = r.lse.const_data_ptr<float>(),
      .dlse = r.dlse.defined() ? r.dlse.const_data_ptr<float>() : nullptr,
      .dq = writable_rows_of<T>(g.q),
      .dk = writable_rows_of<T>(g.k),
      .dv = writable_rows_of<T>(g.v),
      .add_to_keys = keys == KeyGradients::added,
      .dtau = g.tau_bht.defined() ? g.tau_bht.mutable_data_ptr<float>() : nullptr});
}

// A sink is a key with value 0.
at::Tensor sink_gradient(const at::Tensor& sink_h, const FusedResults& r) {
  const at::Tensor out = r.rest.defined() ? r.out.to(at::kFloat) + r.rest : r.out.to(at::kFloat);
  at::Tensor delta = (out * r.dout).sum(-1);
  if (r.dlse.defined()) delta = delta - r.dlse;
  return -((sink_h.view({1, -1, 1}) - r.lse).exp() * delta).sum(at::IntArrayRef{0, 2});
}

}  // namespace

Operation::Tensors FewRowsCall::forward(const Tensors& x, Tensors& kept) const {
  at::Tensor rest;
  const AttentionResult result = few_rows_forward(*this, {x[0], x[1], x[2], x[3], x[4]}, rest);
  kept = x;
  kept.insert(kept.end(), {result.out_bhte, result.lse_bht, rest});
  return {result.out_bhte, result.lse_bht};
}

Operation::Tensors FewRowsCall::backward(const Tensors& s, const Tensors& grads,
                                         const std::vector<bool>& /*wanted*/) const {
  const FewRowsOperands x{contiguous_rows(s[0]), contiguous_rows(s[1]), contiguous_rows(s[2]), s[3],
                          s[4]};
  const FusedResults r = results_of(s[5], s[6], grads, s[7]);
  FusedGradients g{.q = at::empty_like(x.q_bhnd),
                   .k = empty_by_token(x.k_bgsd.sizes().vec(), x.k_bgsd.options()),
                   .v = empty_by_token(x.v_bgse.sizes().vec(), x.v_bgse.options())};
  if (x.tau_bn.numel() > 0) g.tau_bht = at::empty(r.lse.sizes(), r.lse.options());
  few_rows_backward(*this, x, r, g, KeyGradients::written);
  return {g.q, g.k, g.v, g.tau_bht.defined() ? g.tau_bht.sum(1) : g.tau_bht, g.sink_bh};
}

c10::intrusive_ptr<FewRowsCall> few_rows_call(const AttentionCall& part,
                                              std::vector<uint64_t> seen) {
  auto few = c10::make_intrusive<FewRowsCall>();
  few->part = part;
  few->keeps_rest = part.wants_gradient();
  few->seen = std::move(seen);
  AttentionCall& kept = few->part;
  kept.q = kept.k = kept.v = kept.tensors.tau_bt = kept.tensors.sink_logit_h = at::Tensor();
  return few;
}

AttentionResult few_rows_forward(const FewRowsCall& call, const FewRowsOperands& x,
                                 at::Tensor& rest) {
  AttentionCall part = call.part;
  const at::ScalarType dtype = x.q_bhnd.scalar_type();
  const bool keeps_rest = call.keeps_rest && dtype == at::kBFloat16;
  const at::ScalarType computed = keeps_rest ? at::kFloat : dtype;
  part.q = x.q_bhnd.to(computed), part.k = x.k_bgsd.to(computed), part.v = x.v_bgse.to(computed);
  if (x.tau_bn.numel() > 0) part.tensors.tau_bt = x.tau_bn;
  if (x.sink_h.numel() > 0) part.tensors.sink_logit_h = x.sink_h;
  AttentionResult result = run_part(part);
  const at::Tensor out = result.out_bhte;
  result.out_bhte = out.to(dtype);
  if (keeps_rest) rest = (out - result.out_bhte).to(dtype);
  result.lse_bht = result.lse_bht.contiguous();
  return result;
}

void few_rows_backward(const FewRowsCall& call, const FewRowsOperands& x, const FusedResults& r,
                       FusedGradients& g, KeyGradients keys) {
  with_kernel_type(x.q_bhnd.scalar_type(), "attention",
                   [&]<class T>(T) { key_and_query_gradients<T>(call, x, r, g, keys); });
  if (x.sink_h.numel() > 0) g.sink_bh = sink_gradient(x.sink_h, r);
}

AttentionResult run_few_rows(const AttentionCall& part, std::vector<uint64_t> seen) {
  const at::ScalarType dtype = part.q.scalar_type(), kernel = kernel_dtype(dtype);
  const Operation::Tensors outputs =
      run_operation(few_rows_call(part, std::move(seen)),
                    {part.q.to(kernel), part.k.to(kernel), part.v.to(kernel),
                     floats_or_none(part.tensors.tau_bt, part.q),
                     floats_or_none(part.tensors.sink_logit_h, part.q)});
  return kernel_result(outputs[0], outputs[1], dtype);
}

}  // namespace fovea
