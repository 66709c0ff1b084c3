// The path of selectors: queries that choose their keys, by kernels that read few of them (spec
// 4.4, 4.5).
//
// One query of SparQ reads some components of all keys, then the chosen keys and values; many take
// their logits from one matrix product a block of rows. MagicPIG: sampled.cpp.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "fovea/attention/backend.h"
#include "fovea/attention/mechanisms/sparq_choice.h"
#include "fovea/attention/paths/fused_call.h"
#include "fovea/attention/paths/sampled.h"

namespace fovea {
namespace {

// Lists of so many keys.
IntRowList lists_of(int64_t rows, const auto& keys_of) {
  IntRowList lists;
  for (int64_t r = 0; r < rows; ++r) {
    lists.values.resize(lists.values.size() + static_cast<size_t>(keys_of(r)));
    lists.end_row();
  }
  return lists;
}

kernels::KeyBudget budget_of(const SparqSpec& sparq) {
  return {.past = sparq.keys, .recent = sparq.recent_keys()};
}

// Queries [n, heads of a key head, 1, d] against keys [n, 1, s, d], each of which reads its list.
AttentionResult read_listed(const AttentionCall& call, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const at::Tensor& tau_n1, const IntRows& lists) {
  AttentionCall one{.spec = call.spec, .q = q, .k = k, .v = v};
  one.spec.sparq = {};
  one.spec.heads = q.size(1);
  one.spec.kv_heads = 1;
  one.tensors.tau_bt = tau_n1;
  return run_decoding(one, lists);
}

// alpha y + (1 - alpha) mean, [n, heads, e] each; the mean [n, 1, e].
at::Tensor blended(const at::Tensor& y, const at::Tensor& alpha, const at::Tensor& mean) {
  const at::Tensor share = alpha.unsqueeze(-1);
  return y.to(at::kFloat) * share + mean * (1.0 - share);
}

template <class T>
void choose_by_components(const AttentionCall& call, const at::Tensor& tau, IntRowList& lists,
                          const at::Tensor& alpha) {
  const SparqSpec& sparq = call.spec.sparq;
  const at::Tensor& x = call.selector.key_components_bgds;
  const at::Tensor q = contiguous_rows(call.q);
  backend_for(q).run(
      kernels::ComponentChoice<T>{.sizes = {.batch = q.size(0),
                                            .heads = call.spec.heads,
                                            .kv_heads = call.spec.kv_heads,
                                            .queries = 1,
                                            .keys = call.k.size(2),
                                            .head_dim = call.spec.head_dim,
                                            .value_dim = call.spec.value_width()},
                                  .q = rows_of<T>(q),
                                  .keys = static_cast<const T*>(x.const_data_ptr()),
                                  .batch = x.stride(0),
                                  .head = x.stride(1),
                                  .component = x.stride(2),
                                  .components = sparq.components,
                                  .budget = budget_of(sparq),
                                  .scale = static_cast<float>(call.spec.logit_scale()),
                                  .tau = tau.defined() ? tau.const_data_ptr<float>() : nullptr,
                                  .next_k = rows_of<T>(call.k),
                                  .next_v = rows_of<T>(call.v),
                                  .chosen = lists.values.data(),
                                  .alpha = alpha.mutable_data_ptr<float>()});
}

// Key heads as sequences of a batch of their own.
at::Tensor by_key_head(const at::Tensor& x_bgsd) {
  return x_bgsd.reshape({x_bgsd.size(0) * x_bgsd.size(1), 1, x_bgsd.size(2), x_bgsd.size(3)});
}

// Queries of the heads of every key head, [b g, n, 1, d], which read its list.
template <class T>
void read_lists(const AttentionCall& call, const at::Tensor& rows_tau, const IntRows& lists,
                const at::Tensor& out, const at::Tensor& lse) {
  const int64_t items = lists.rows(), n = heads_per_key(call);
  const at::Tensor q = contiguous_rows(call.q.reshape({items, n, 1, call.q.size(3)})),
                   k = contiguous_rows(by_key_head(call.k)),
                   v = contiguous_rows(by_key_head(call.v));
  const int64_t keys = std::ssize(lists.of(0));
  const std::vector<RowVisits> rows(static_cast<size_t>(items),
                                    {.near = {.begin = 0, .end = keys}, .far = {}});
  backend_for(q).run(kernels::AttentionDecode<T>{
      .sizes = {.batch = items,
                .heads = n,
                .kv_heads = 1,
                .queries = 1,
                .keys = keys,
                .head_dim = q.size(3),
                .value_dim = v.size(3)},
      .rule = {.scale = static_cast<float>(call.spec.logit_scale()),
               .tau = rows_tau.defined() ? rows_tau.const_data_ptr<float>() : nullptr},
      .rows = rows,
      .keys_seen = lists,
      .q = rows_of<T>(q),
      .k = rows_of<T>(k),
      .v = rows_of<T>(v),
      .out = writable_rows_of<T>(out),
      .lse = lse.mutable_data_ptr<float>()});
}

// out = alpha out + (1 - alpha) sums / count; out [b g, n, 1, e], alpha [b g, n], sums [b g, e].
template <class T>
void blend_in_place(const at::Tensor& out, const at::Tensor& alpha, const at::Tensor& sums,
                    int64_t count) {
  const int64_t items = out.size(0), n = out.size(1), e = out.size(3);
  T* const y = static_cast<T*>(out.data_ptr());
  const float* const shares = alpha.const_data_ptr<float>();
  const double* const totals = sums.const_data_ptr<double>();
  for (int64_t row = 0; row < items * n; ++row) {
    for (int64_t c = 0; c < e; ++c) {
      const auto mean = static_cast<float>(totals[row / n * e + c] / static_cast<double>(count));
      T& number = y[row * e + c];
      from_float(to_float(number) * shares[row] + mean * (1.0f - shares[row]), number);
    }
  }
}

AttentionResult sparq_query(const AttentionCall& call) {
  const int64_t b = call.q.size(0), g = call.spec.kv_heads, n = heads_per_key(call),
                s = call.k.size(2), e = call.v.size(3);
  const bool blends = call.spec.sparq.reallocate && s > call.spec.sparq.keys + 1;
  const kernels::KeyBudget budget = budget_of(call.spec.sparq);
  IntRowList lists = lists_of(b * g, [&](int64_t) { return budget.chosen_of(s); });
  const at::Tensor alpha = at::empty({b * g, n}, at::kFloat), tau = float_rows(call.tensors.tau_bt);
  const at::Tensor rows_tau = tau.defined() ? tau.repeat_interleave(g, 0) : tau;
  const at::Tensor out = at::empty({b * g, n, 1, e}, call.q.options());
  const at::Tensor lse = at::empty({b, g * n, 1}, at::kFloat);
  at::Tensor sums = call.selector.value_sums_bge;
  if (blends && !sums.defined()) sums = call.v.sum(2, false, at::kDouble);
  with_kernel_type(call.q.scalar_type(), "attention", [&]<class T>(T) {
    choose_by_components<T>(call, tau, lists, alpha);
    read_lists<T>(call, rows_tau, lists.view(), out, lse);
    if (blends) blend_in_place<T>(out, alpha, sums.contiguous(), s);
  });
  AttentionResult result{.out_bhte = out.view({b, g * n, 1, e}), .lse_bht = lse};
  result.path.isa = kernel_isa(call.q);
  result.path.plan = PlanWord::scan;
  result.path.reason = one_query_reason(std::ssize(lists.values), b * g, s);
  return result;
}

// Rows [begin, end) of the queries of one key head, with what all blocks share.
struct SparqHead {
  at::Tensor q_ntd, scaled_ntd, keys_sd;  ///< as given; cut and scaled, float32; float32
  at::Tensor k_sd, v_se, means_se,
      tau_t;  ///< as given; mean of the values up to each; or undefined
};

struct SparqBlock {
  at::Tensor out_tne, lse_tn;
  int64_t read = 0;
};

SparqBlock sparq_block(const AttentionCall& call, const SparqHead& head, int64_t begin,
                       int64_t end) {
  const SparqSpec& sparq = call.spec.sparq;
  const int64_t n = head.q_ntd.size(0), rows = end - begin,
                before = call.k.size(2) - call.q.size(2) + begin, seen = before + rows;
  const auto some = [&](const at::Tensor& x) { return x.narrow(1, begin, rows); };
  const at::Tensor logits =
      at::matmul(some(head.scaled_ntd), head.keys_sd.narrow(0, 0, seen).transpose(0, 1))
          .contiguous();
  const kernels::KeyBudget budget = budget_of(sparq);
  IntRowList lists = lists_of(rows, [&](int64_t r) { return budget.chosen_of(before + 1 + r); });
  const at::Tensor alpha = at::empty({rows, n}, at::kFloat);
  backend_for(logits).run(kernels::LogitChoice{.rows = rows,
                                               .heads = n,
                                               .first_length = before + 1,
                                               .logits = logits.mutable_data_ptr<float>(),
                                               .pitch = seen,
                                               .budget = budget_of(sparq),
                                               .chosen = lists.values.data(),
                                               .begin = lists.begin.data(),
                                               .alpha = alpha.mutable_data_ptr<float>()});
  const auto shared = [rows](const at::Tensor& x_sd) {
    return x_sd.unsqueeze(0).unsqueeze(0).expand({rows, 1, x_sd.size(0), x_sd.size(1)});
  };
  const at::Tensor tau = head.tau_t.defined()
                             ? head.tau_t.narrow(0, begin, rows).unsqueeze(1).contiguous()
                             : at::Tensor();
  const AttentionResult part = read_listed(call, some(head.q_ntd).transpose(0, 1).unsqueeze(2),
                                           shared(head.k_sd), shared(head.v_se), tau, lists.view());
  SparqBlock block{.out_tne = part.out_bhte.squeeze(2),
                   .lse_tn = part.lse_bht.squeeze(2),
                   .read = std::ssize(lists.values)};
  if (sparq.reallocate)
    block.out_tne =
        blended(block.out_tne, alpha, head.means_se.narrow(0, before, rows).unsqueeze(1));
  return block;
}

SparqHead sparq_head(const AttentionCall& call, const SparqRows& rows, int64_t b, int64_t g) {
  const int64_t n = heads_per_key(call);
  const auto queries = [&](const at::Tensor& x) { return x.select(0, b).narrow(0, g * n, n); };
  SparqHead head{.q_ntd = queries(call.q),
                 .scaled_ntd = queries(rows.q_bhtd) * queries(rows.scale_bht).unsqueeze(-1),
                 .keys_sd = call.k.select(0, b).select(0, g).to(at::kFloat),
                 .k_sd = contiguous_rows(call.k).select(0, b).select(0, g),
                 .v_se = contiguous_rows(call.v).select(0, b).select(0, g)};
  if (call.tensors.tau_bt.defined()) head.tau_t = call.tensors.tau_bt.select(0, b).to(at::kFloat);
  const at::Tensor counts = at::arange(1, call.k.size(2) + 1, at::kDouble).unsqueeze(1);
  head.means_se = (head.v_se.cumsum(0, at::kDouble) / counts).to(at::kFloat);
  return head;
}

AttentionResult sparq_queries(const AttentionCall& call) {
  const int64_t b = call.q.size(0), t = call.q.size(2), s = call.k.size(2), n = heads_per_key(call);
  const int64_t block = std::clamp<int64_t>(kSelectorBlockBytes / (4 * n * s), 1, t);
  const SparqRows rows = sparq_rows(call.spec, call.q.to(at::kFloat), call.tensors.tau_bt);
  AttentionResult result;
  result.out_bhte = empty_by_token({b, call.spec.heads, t, call.v.size(3)}, call.q.options());
  result.lse_bht = at::empty({b, call.spec.heads, t}, at::kFloat);
  int64_t read = 0;
  for (int64_t row = 0; row < b; ++row) {
    for (int64_t g = 0; g < call.spec.kv_heads; ++g) {
      const SparqHead head = sparq_head(call, rows, row, g);
      for (int64_t begin = 0; begin < t; begin += block) {
        const int64_t end = std::min(t, begin + block);
        const SparqBlock part = sparq_block(call, head, begin, end);
        const auto place = [&](const at::Tensor& x) {
          return x.select(0, row).narrow(0, g * n, n).narrow(1, begin, end - begin);
        };
        place(result.out_bhte).copy_(part.out_tne.transpose(0, 1));
        place(result.lse_bht).copy_(part.lse_tn.transpose(0, 1));
        read += part.read;
      }
    }
  }
  result.path.isa = kernel_isa(call.q);
  result.path.plan = PlanWord::lists;
  result.path.reason = text_reason(read, b * call.spec.kv_heads * t, t, s);
  return result;
}

std::optional<std::string> why_not_selected(const AttentionCall& call) {
  const AttentionContext& context = call.context;
  if (auto why = why_not_kernels(call)) return why;
  if (call.q.scalar_type() == at::kHalf) return "no kernel of selectors for Half";
  if (call.q.numel() == 0 || call.k.size(2) < call.q.size(2)) return "nothing to compute";
  if (context.query_documents_bt.defined() || context.key_documents_bs.defined() ||
      context.query_positions_bt.defined() || context.key_positions_bs.defined() ||
      context.key_lengths_b.defined())
    return "kernels of selectors are for one document a row, whose keys stand at 0, 1, ...";
  if (context.want_stats) return "kernels of selectors have no telemetry";
  if (call.drops_weights()) return "kernels of selectors have no dropout";
  if (call.wants_gradient()) return "kernels of selectors have no gradient";
  if (!backend_for(call.q).prefers_decode(sizes_of(call.spec)))
    return "kernels of selectors are for few query heads a key head";
  if (call.spec.magic_pig.active()) return why_not_sampled(call);
  return std::nullopt;
}

AttentionResult run_selected(const AttentionCall& call) {
  const at::NoGradGuard no_gradient;
  if (call.spec.magic_pig.active()) return run_sampled(call);
  const bool decodes = call.q.size(2) == 1 && call.selector.key_components_bgds.defined();
  return decodes ? sparq_query(call) : sparq_queries(call);
}

}  // namespace

AttentionPath selected_path() {
  return {.name = PathName::grouped,
          .runs_on = has_kernels<kernels::ComponentChoice>,
          .key_rule = KeyRule::selected,
          .why_not = why_not_selected,
          .run = run_selected};
}

}  // namespace fovea
