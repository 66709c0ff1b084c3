// The path of sums of features: Performer by the prefix-sum kernels, forward and backward, and its
// decoding from a state, by the kernels or by plain tensor operations (spec 4.2).
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/paths/sums.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "fovea/attention/backend.h"
#include "fovea/attention/isolation.h"
#include "fovea/attention/mechanisms/performer_features.h"
#include "fovea/attention/operation.h"
#include "fovea/attention/paths/fused_call.h"
#include "fovea/attention/paths/grouped.h"
#include "fovea/attention/paths/path.h"
#include "fovea/attention/pipeline.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

using kernels::PerformerChunk;

// Chunks of each sequence, or of all (kernels::PerformerInputs).
struct ChunkLists {
  std::vector<PerformerChunk> chunks;
  std::vector<int64_t> begin{0};

  void add(std::span<const int64_t> borders, int64_t tokens) {
    kernels::add_performer_chunks(borders, tokens, chunks);
    begin.push_back(std::ssize(chunks));
  }
};

/// Inputs: q, k, v and tau in float32 (Operands). Results: out, and lse where it is wanted.
struct PerformerCall : Operation {
  ChunkLists chunks;
  PerformerFactors factors;
  at::Tensor features_md;
  bool want_lse = false, keep_states = false;

  Tensors forward(const Tensors& inputs, Tensors& kept) const override;
  Tensors backward(const Tensors& kept, const Tensors& grads,
                   const std::vector<bool>& wanted) const override;
};

struct Operands {
  at::Tensor q, k, v, tau_bt;  // tau: no elements where it is not learned
};

kernels::PerformerInputs inputs_of(const PerformerCall& call, const Operands& x) {
  return {.batch = x.q.size(0),
          .heads = x.q.size(1),
          .kv_heads = x.k.size(1),
          .tokens = x.q.size(2),
          .key_width = x.q.size(3),
          .value_width = x.v.size(3),
          .features = call.features_md.size(0),
          .directions = call.features_md.const_data_ptr<float>(),
          .key_factor = static_cast<float>(call.factors.key),
          .query_factor = static_cast<float>(call.factors.query),
          .tau = x.tau_bt.numel() > 0 ? x.tau_bt.const_data_ptr<float>() : nullptr,
          .q = rows_of<float>(x.q),
          .k = rows_of<float>(x.k),
          .v = rows_of<float>(x.v),
          .chunks = call.chunks.chunks,
          .chunk_begin = call.chunks.begin};
}

Operands performer_operands(const Operation::Tensors& x) {
  return {contiguous_rows(x[0]), contiguous_rows(x[1]), contiguous_rows(x[2]), x[3].contiguous()};
}

std::string performer_isa(const at::Tensor& x) {
  return std::string(backend_for(x).isa<kernels::PerformerForward>());
}

at::Tensor empty_lse(const Operands& x) {
  return at::empty({x.q.size(0), x.q.size(1), x.q.size(2)}, x.q.options());
}

Operation::Tensors PerformerCall::forward(const Tensors& inputs, Tensors& kept) const {
  const Operands x = performer_operands(inputs);
  kernels::PerformerForward problem{.in = inputs_of(*this, x)};
  const at::Tensor out =
      empty_by_token({x.q.size(0), x.q.size(1), x.q.size(2), x.v.size(3)}, x.q.options());
  problem.out = writable_rows_of<float>(out);
  at::Tensor lse, states;
  if (want_lse) {
    lse = empty_lse(x);
    problem.lse = lse.mutable_data_ptr<float>();
  }
  if (keep_states) {
    states =
        at::empty({x.q.size(0), x.k.size(1), problem.in.most_chunks(), problem.in.state_size()},
                  x.q.options());
    problem.states = states.mutable_data_ptr<float>();
  }
  backend_for(x.q).run(problem);
  kept = inputs;
  kept.insert(kept.end(), {out, states});
  return want_lse ? Tensors{out, lse} : Tensors{out};
}

Operation::Tensors PerformerCall::backward(const Tensors& s, const Tensors& grads,
                                           const std::vector<bool>& /*wanted*/) const {
  const Operands x = performer_operands(s);
  const at::Tensor& out = s[4];
  const at::Tensor dout = grads[0].defined() ? contiguous_rows(grads[0]) : at::zeros_like(out);
  const at::Tensor dlse =
      grads.size() > 1 && grads[1].defined() ? grads[1].contiguous() : at::Tensor();
  const auto like = [](const at::Tensor& t) {
    return empty_by_token(t.sizes().vec(), t.options());
  };
  const at::Tensor dq = like(x.q), dk = like(x.k), dv = like(x.v);
  at::Tensor dtau;
  kernels::PerformerBackward problem{.in = inputs_of(*this, x)};
  problem.out = rows_of<float>(out);
  problem.dout = rows_of<float>(dout);
  problem.dlse = dlse.defined() ? dlse.const_data_ptr<float>() : nullptr;
  problem.states = s[5].const_data_ptr<float>();
  problem.dq = writable_rows_of<float>(dq);
  problem.dk = writable_rows_of<float>(dk);
  problem.dv = writable_rows_of<float>(dv);
  if (x.tau_bt.numel() > 0) {
    dtau = empty_lse(x);
    problem.dtau = dtau.mutable_data_ptr<float>();
  }
  backend_for(x.q).run(problem);
  return {dq, dk, dv, dtau.defined() ? dtau.sum(1) : dtau};
}

// The first tokens of documents, of each row of the batch or of all of them.
ChunkLists chunk_lists(const SelfPlaces& places) {
  ChunkLists lists;
  for (const std::vector<TokenPlace>& row : places.rows) {
    std::vector<int64_t> borders;
    for (size_t n = 0; n < row.size(); ++n)
      if (n == 0 || row[n].document != row[n - 1].document)
        borders.push_back(static_cast<int64_t>(n));
    lists.add(borders, std::ssize(row));
  }
  return lists;
}

bool runs_performer(const kernels::Backend& backend) {
  return !backend.isa<kernels::PerformerForward>().empty();
}

std::optional<std::string> why_no_kernel(const AttentionCall& call) {
  const at::ScalarType dtype = call.q.scalar_type();
  const kernels::Backend* const backend = backend_of(call.q.device());
  if (backend == nullptr || !runs_performer(*backend))
    return "the kernels of performer run on the CPU";
  if (dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf)
    return fmt::format("no performer kernel for {}", at::toString(dtype));
  if (call.spec.performer.epsilon > 0.0)
    return "performer.epsilon joins pairs with the whole text: the reference alone has it";
  if (call.tensors.features_md.requires_grad())
    return "features are state: the reference alone gives them a gradient";
  return std::nullopt;
}

std::optional<std::string> why_not_performer(const AttentionCall& call) {
  if (auto why = why_no_kernel(call)) return why;
  if (call.q.size(0) == 0 || call.q.size(2) == 0) return "nothing to compute";
  if (call.q.size(2) != call.k.size(2)) return "earlier keys without their state";
  if (call.context.key_lengths_b.defined()) return "rows of unequal lengths";
  return call.made.get([&] { return self_places(call); })->why_not;
}

c10::intrusive_ptr<PerformerCall> shared_call(const AttentionCall& call) {
  auto shared = c10::make_intrusive<PerformerCall>();
  shared->factors = performer_factors(call);
  shared->features_md = call.tensors.features_md.detach().to(at::kFloat).contiguous();
  shared->want_lse = call.context.want_lse;
  return shared;
}

at::Tensor tau_of(const AttentionCall& call) {
  const at::Tensor& tau = call.tensors.tau_bt;
  return tau.defined() ? tau.to(at::kFloat) : at::empty({0}, call.q.options().dtype(at::kFloat));
}

AttentionResult by_reference_performer(const AttentionCall& call) {
  AttentionResult result = reference_path().run(call);
  result.path.name = PathName::reference;
  result.path.reason = {.kind = PathReason::Kind::refused,
                        .detail = "sums of features are for finite numbers"};
  return result;
}

AttentionResult run_performer(const AttentionCall& call) {
  const auto places = call.made.get([&] { return self_places(call); });
  auto shared = shared_call(call);
  shared->chunks = chunk_lists(*places);
  shared->keep_states = call.wants_gradient();
  const bool documents = std::ranges::any_of(places->rows, [](const auto& row) {
    return !row.empty() && row.front().document != row.back().document;
  });
  const Operation::Tensors outputs = run_operation(
      shared, {call.q.to(at::kFloat), call.k.to(at::kFloat), call.v.to(at::kFloat), tau_of(call)});
  if (!all_finite(outputs[0])) return by_reference_performer(call);
  AttentionResult result;
  result.out_bhte = outputs[0];
  if (call.context.want_lse) result.lse_bht = outputs[1];
  result.path.isa = performer_isa(call.q);
  result.path.plan = documents ? PlanWord::documents : PlanWord::causal;
  return result;
}

// The kernels over the next tokens of each sequence, and the state.
AttentionResult by_kernels(const AttentionCall& call, const at::Tensor& state) {
  const auto shared = shared_call(call);
  const int64_t first = 0;
  shared->chunks.add({&first, 1}, call.q.size(2));
  const Operands x = performer_operands(
      {call.q.to(at::kFloat), call.k.to(at::kFloat), call.v.to(at::kFloat), tau_of(call)});
  kernels::PerformerForward problem{.in = inputs_of(*shared, x)};
  AttentionResult result;
  result.out_bhte =
      empty_by_token({x.q.size(0), x.q.size(1), x.q.size(2), x.v.size(3)}, x.q.options());
  problem.out = writable_rows_of<float>(result.out_bhte);
  result.lse_bht = empty_lse(x);
  problem.lse = result.lse_bht.mutable_data_ptr<float>();
  problem.running = state.mutable_data_ptr<float>();
  backend_for(x.q).run(problem);
  result.path = {.name = PathName::fused, .isa = performer_isa(call.q), .plan = PlanWord::causal};
  return result;
}

// The same by plain tensor operations: all new tokens at once.
AttentionResult by_operations(const AttentionCall& call, const at::Tensor& state) {
  const at::ScalarType dtype = state.scalar_type();
  const int64_t e = call.v.size(3), z_column = kernels::padded_lanes(e), b = call.q.size(0),
                h = call.q.size(1), t = call.q.size(2), g = call.k.size(1);
  const PerformerFactors factors = performer_factors(call);
  const at::Tensor w = call.tensors.features_md.to(dtype);
  at::Tensor q = call.q.to(dtype) * factors.query;
  if (call.tensors.tau_bt.defined()) q = q / call.tensors.tau_bt.to(dtype).reshape({b, 1, t, 1});
  const auto exponents = [&](const at::Tensor& x) {
    return at::matmul(x, w.t()) - 0.5 * x.square().sum(-1, true);
  };
  const at::Tensor of_queries = exponents(q),
                   of_keys = exponents(call.k.to(dtype) * factors.key);          // [b, *, t, m]
  const at::Tensor has_keys = state.select(2, 0).select(2, z_column + 2) > 0.0;  // [b, g]
  const at::Tensor before =
      at::where(has_keys, state.select(2, 0).select(2, z_column + 1),
                at::full({}, -std::numeric_limits<double>::infinity(), state.options()))
          .reshape({b, g, 1, 1});
  const at::Tensor after = at::maximum(before, at::amax(of_keys, {2, 3}, true));
  const at::Tensor largest = at::amax(of_queries, -1, true);
  const at::Tensor phi_q = at::exp(of_queries - largest).reshape({b, g, h / g * t, w.size(0)}),
                   phi_k = at::exp(of_keys - after),
                   values =
                       at::cat({call.v.to(dtype), at::ones({b, g, t, 1}, state.options())}, -1);
  const at::Tensor sums =
      at::cat({state.narrow(3, 0, e), state.narrow(3, z_column, 1)}, 3) * at::exp(before - after);
  const at::Tensor pairs =
      at::matmul(phi_q, phi_k.transpose(2, 3)).reshape({b, g, h / g, t, t}).tril();
  const at::Tensor totals =
      (at::matmul(phi_q, sums) + at::matmul(pairs.reshape({b, g, h / g * t, t}), values))
          .reshape({b, h, t, e + 1});
  const at::Tensor total = totals.narrow(3, e, 1);
  AttentionResult result;
  result.out_bhte = totals.narrow(3, 0, e) / total.masked_fill(total == 0.0, 1.0);
  result.lse_bht = (total.log() + largest + after.repeat_interleave(h / g, 1)).squeeze(-1) -
                   std::log(static_cast<double>(w.size(0)));
  const at::Tensor now = sums + at::matmul(phi_k.transpose(2, 3), values);
  state.narrow(3, 0, e).copy_(now.narrow(3, 0, e));
  state.select(3, z_column).copy_(now.select(3, e));
  state.select(2, 0).select(2, z_column + 1).copy_(after.reshape({b, g}));
  state.select(2, 0).select(2, z_column + 2).fill_(1.0);
  result.path = {.name = PathName::reference, .plan = PlanWord::dense};
  return result;
}

// by_operations() over few tokens at a time: a text of any length in little memory.
AttentionResult in_blocks(const AttentionCall& call, const at::Tensor& state) {
  constexpr int64_t kBlock = 256;
  AttentionResult result;
  std::vector<at::Tensor> outs, lses;
  for (int64_t begin = 0; begin < call.q.size(2); begin += kBlock) {
    const int64_t n = std::min(kBlock, call.q.size(2) - begin);
    AttentionCall block = call;
    for (at::Tensor* x : {&block.q, &block.k, &block.v}) *x = x->narrow(2, begin, n);
    if (at::Tensor& tau = block.tensors.tau_bt; tau.defined()) tau = tau.narrow(1, begin, n);
    result = by_operations(block, state);
    outs.push_back(result.out_bhte);
    lses.push_back(result.lse_bht);
  }
  result.out_bhte = at::cat(outs, 2);
  result.lse_bht = at::cat(lses, 2);
  return result;
}

}  // namespace

AttentionResult sums_from_state(const AttentionCall& call, const at::Tensor& state, Path path) {
  const std::optional<std::string> why = why_no_kernel(call);
  require<UnsupportedError>(path != Path::fused || !why, "attention",
                            "path fused has no kernel for this call (performer): {}; use path "
                            "automatic or reference",
                            why.value_or(""));
  if (call.q.size(2) == 0) {
    return {.out_bhte =
                at::empty({call.q.size(0), call.q.size(1), 0, call.v.size(3)}, call.q.options())};
  }
  AttentionResult result =
      why || path == Path::reference ? in_blocks(call, state) : by_kernels(call, state);
  if (!call.context.want_lse) result.lse_bht = at::Tensor();
  return result;
}

AttentionPath sums_path() {
  return {.name = PathName::fused,
          .runs_on = runs_performer,
          .key_rule = KeyRule::sums,
          .why_not = why_not_performer,
          .run = run_performer};
}

}  // namespace fovea
