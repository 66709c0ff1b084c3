// The reference in blocks of rows: the same composition, with little memory.
//
// A block keeps nothing for the backward pass but the inputs of the call; its graph is built again
// there. Under a causal mask a block of early rows needs no later keys, which saves about as much
// as the second forward pass costs.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "fovea/attention/mechanism.h"
#include "fovea/attention/paths/path.h"
#include "fovea/attention/pipeline.h"

namespace fovea {
namespace {

using torch::autograd::AutogradContext;
using Variables = torch::autograd::variable_list;

// A block's weights take this much, and a handful of such tensors live at a time: beyond the
// caches, where more would only cost memory, and long enough that calls cost nothing.
constexpr int64_t kBlockBytes = int64_t{32} << 20;
// Fewer rows would mostly recompute the earlier rows of convolutions.
constexpr int64_t kFewestRows = 64;

// The call without its tensors, which autograd keeps, and the names of those that there are.
struct Job : torch::CustomClassHolder {
  AttentionCall call;
  Places places;
  int64_t block = 0;
  std::vector<std::string_view> stage_names;
};

// q, k and v in front of the stage tensors.
constexpr size_t kStageTensors = 3;

// Moves the tensors of the job's call into a list, as floats of accumulate_type() where they are
// q, k and v.
Variables take_tensors(Job& job) {
  AttentionCall& call = job.call;
  const at::ScalarType wide = accumulate_type(call.q.scalar_type());
  Variables all{call.q.to(wide), call.k.to(wide), call.v.to(wide)};
  call.q = call.k = call.v = at::Tensor();
  for (const auto& [name, tensor] : call.tensors.named()) {
    if (!tensor->defined()) continue;
    job.stage_names.push_back(name);
    all.push_back(*tensor);
    *tensor = at::Tensor();
  }
  return all;
}

AttentionCall call_with(const Job& job, const Variables& all) {
  AttentionCall call = job.call;
  call.q = all[0];
  call.k = all[1];
  call.v = all[2];
  for (const auto& [name, tensor] : call.tensors.named()) {
    const auto found = std::ranges::find(job.stage_names, name);
    if (found != job.stage_names.end())
      *tensor = all[kStageTensors + static_cast<size_t>(found - job.stage_names.begin())];
  }
  return call;
}

// Output before stage 10's norm and gate, and lse, of some rows.
std::pair<at::Tensor, at::Tensor> attend_rows(const Job& job, const Variables& x, RowRange rows,
                                              bool only_visible_keys) {
  const AttentionCall call = call_with(job, x);
  RowWeights r = weights_of_rows(call, job.places, rows, call.context.want_lse, only_visible_keys);
  r.rows.stage = StageId::values;
  const at::Tensor weights = with_formulas(std::move(r.weights_bhts), r.rows);
  at::Tensor out = r.rows.weigh(weights, call.v);
  for (const Mechanism* mechanism : mechanisms())
    if (mechanism->output != nullptr) out = mechanism->output(out, weights, r.rows);
  return {out, r.lse_bht};
}

class BlockwiseAttention : public torch::autograd::Function<BlockwiseAttention> {
 public:
  static Variables forward(AutogradContext* ctx, const c10::intrusive_ptr<Job>& job,
                           at::TensorList inputs) {
    const Variables x = inputs.vec();
    ctx->save_for_backward(x);
    ctx->saved_data["job"] = c10::IValue::make_capsule(job);
    std::vector<at::Tensor> out, lse;
    for (const RowRange rows : blocks(*job, x)) {
      auto [block_out, block_lse] = attend_rows(*job, x, rows, true);
      out.push_back(block_out);
      lse.push_back(block_lse);
    }
    Variables results{at::cat(out, 2)};
    if (job->call.context.want_lse) results.push_back(at::cat(lse, 2));
    return results;
  }

  static Variables backward(AutogradContext* ctx, const Variables& grads) {
    const auto capsule = ctx->saved_data["job"].toCapsule();
    const Job& job = static_cast<const Job&>(*capsule);
    Variables inputs = ctx->get_saved_variables(), wanted, sums;
    std::vector<size_t> places;
    for (size_t n = 0; n < inputs.size(); ++n) {
      const bool needed = inputs[n].requires_grad();
      inputs[n] = inputs[n].detach();
      if (!needed) continue;
      wanted.push_back(inputs[n].set_requires_grad(true));
      sums.push_back(at::zeros_like(inputs[n]));
      places.push_back(n);
    }
    for (const RowRange rows : blocks(job, inputs))
      add_block(job, inputs, rows, grads, wanted, sums);
    Variables results(inputs.size() + 1);  // the first is of the job
    for (size_t n = 0; n < places.size(); ++n) results[places[n] + 1] = sums[n];
    return results;
  }

 private:
  static std::vector<RowRange> blocks(const Job& job, const Variables& x) {
    std::vector<RowRange> all;
    const int64_t t = x[0].size(2);
    for (int64_t begin = 0; begin < t; begin += job.block)
      all.push_back({begin, std::min(t, begin + job.block)});
    return all;
  }

  static void add_block(const Job& job, const Variables& inputs, RowRange rows,
                        const Variables& grads, const Variables& wanted, Variables& sums) {
    Variables outputs, output_grads;
    {
      const at::AutoGradMode enable(true);
      const auto [out, lse] = attend_rows(job, inputs, rows, true);
      for (const auto& [y, grad] :
           {std::pair{out, grads[0]}, {lse, grads.size() > 1 ? grads[1] : at::Tensor()}}) {
        if (!y.defined() || !grad.defined() || !y.requires_grad()) continue;
        outputs.push_back(y);
        output_grads.push_back(grad.narrow(2, rows.begin, rows.end - rows.begin));
      }
    }
    if (outputs.empty()) return;
    const Variables parts =
        torch::autograd::grad(outputs, wanted, output_grads, std::nullopt, false, true);
    for (size_t n = 0; n < parts.size(); ++n) {
      if (parts[n].defined()) sums[n].add_(parts[n]);
    }
  }
};

}  // namespace

int64_t reference_block_rows(int64_t batch_heads, int64_t queries, int64_t keys,
                             int64_t element_bytes) {
  const int64_t row_bytes = std::max<int64_t>(1, batch_heads * keys * element_bytes);
  const int64_t rows = std::max(kFewestRows, kBlockBytes / row_bytes);
  return rows >= queries ? 0 : rows;
}

AttentionResult reference_in_blocks(const AttentionCall& call, int64_t block) {
  const auto job = c10::make_intrusive<Job>();
  job->call = call;
  job->places = call.places();
  job->block = block;
  const Variables x = take_tensors(*job);
  AttentionResult result;
  result.path.plan = block == 0 ? PlanWord::dense : PlanWord::blocks;
  if (block == 0) {
    std::tie(result.out_bhte, result.lse_bht) = attend_rows(*job, x, {0, call.q.size(2)}, false);
    return result;
  }
  const Variables results = BlockwiseAttention::apply(job, at::TensorList(x));
  result.out_bhte = results[0];
  if (call.context.want_lse) result.lse_bht = results[1];
  return result;
}

AttentionPath reference_path() {
  return {.name = PathName::reference,
          .why_not = [](const AttentionCall&) { return std::optional<std::string>(); },
          .run =
              [](const AttentionCall& call) {
                const at::Tensor& q = call.q;
                const int64_t bytes = accumulate_type(q.scalar_type()) == at::kDouble ? 8 : 4;
                return reference_in_blocks(
                    call,
                    reference_block_rows(q.size(0) * q.size(1), q.size(2), call.k.size(2), bytes));
              }};
}

}  // namespace fovea
