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

#include <algorithm>

#include "fovea/attention/mechanism.h"
#include "fovea/attention/operation.h"
#include "fovea/attention/paths/path.h"
#include "fovea/attention/pipeline.h"

namespace fovea {
namespace {

using Tensors = Operation::Tensors;

// A block's weights take this much, and a handful of such tensors live at a time: beyond the
// caches, where more would only cost memory, and long enough that calls cost nothing.
constexpr int64_t kBlockBytes = int64_t{32} << 20;
// Fewer rows would mostly recompute the earlier rows of convolutions.
constexpr int64_t kFewestRows = 64;

// The call without its tensors, which autograd keeps, and the names of those that there are.
struct Job : Operation {
  AttentionCall call;
  Places places;
  int64_t block = 0;
  std::vector<std::string_view> stage_names;

  Tensors forward(const Tensors& inputs, Tensors& kept) const override;
  Tensors backward(const Tensors& kept, const Tensors& grads,
                   const std::vector<bool>& wanted) const override;
};

// q, k and v in front of the stage tensors.
constexpr size_t kStageTensors = 3;

// Moves the tensors of the job's call into a list, as floats of accumulate_type() where they are
// q, k and v.
Tensors take_tensors(Job& job) {
  AttentionCall& call = job.call;
  const at::ScalarType wide = accumulate_type(call.q.scalar_type());
  Tensors all{call.q.to(wide), call.k.to(wide), call.v.to(wide)};
  call.q = call.k = call.v = at::Tensor();
  for (const auto& [name, tensor] : call.tensors.named()) {
    if (!tensor->defined()) continue;
    job.stage_names.push_back(name);
    all.push_back(*tensor);
    *tensor = at::Tensor();
  }
  return all;
}

AttentionCall call_with(const Job& job, const Tensors& all) {
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
std::pair<at::Tensor, at::Tensor> attend_rows(const Job& job, const Tensors& x, RowRange rows,
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

std::vector<RowRange> blocks_of(const Job& job, int64_t rows) {
  std::vector<RowRange> all;
  for (int64_t begin = 0; begin < rows; begin += job.block)
    all.push_back({begin, std::min(rows, begin + job.block)});
  return all;
}

// Adds the gradients of some rows to the sums of the leaves.
void add_block(const Job& job, const Tensors& inputs, RowRange rows, const Tensors& grads,
               const Tensors& leaves, Tensors& sums) {
  Tensors outputs, output_grads;
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
  const Tensors parts =
      torch::autograd::grad(outputs, leaves, output_grads, std::nullopt, false, true);
  for (size_t n = 0; n < parts.size(); ++n) {
    if (parts[n].defined()) sums[n].add_(parts[n]);
  }
}

Tensors Job::forward(const Tensors& inputs, Tensors& kept) const {
  kept = inputs;
  Tensors out, lse;
  for (const RowRange rows : blocks_of(*this, inputs[0].size(2))) {
    auto [block_out, block_lse] = attend_rows(*this, inputs, rows, true);
    out.push_back(block_out);
    lse.push_back(block_lse);
  }
  Tensors results{at::cat(out, 2)};
  if (call.context.want_lse) results.push_back(at::cat(lse, 2));
  return results;
}

Tensors Job::backward(const Tensors& kept, const Tensors& grads,
                      const std::vector<bool>& wanted) const {
  Tensors inputs = kept, leaves, sums, all(kept.size());
  for (size_t n = 0; n < inputs.size(); ++n) {
    inputs[n] = inputs[n].detach();
    if (!wanted[n]) continue;
    leaves.push_back(inputs[n].set_requires_grad(true));
    all[n] = sums.emplace_back(at::zeros_like(inputs[n]));
  }
  for (const RowRange rows : blocks_of(*this, inputs[0].size(2)))
    add_block(*this, inputs, rows, grads, leaves, sums);
  return all;
}

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
  const Tensors x = take_tensors(*job);
  AttentionResult result;
  result.path.plan = block == 0 ? PlanWord::dense : PlanWord::blocks;
  if (block == 0) {
    std::tie(result.out_bhte, result.lse_bht) = attend_rows(*job, x, {0, call.q.size(2)}, false);
    return result;
  }
  const Tensors results = run_operation(job, x);
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
