// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cuda/attention/attention.h"

#include <limits>

#include "fovea/kernels/cuda/attention/band_masks.h"
#include "fovea/kernels/cuda/attention/gate.h"
#include "fovea/kernels/cuda/attention/operands.h"
#include "fovea/kernels/cuda/attention/units.h"
#include "fovea/kernels/cuda/machine.h"

namespace fovea::kernels::cuda {
namespace {

// A window that is none must not overflow beside an index of a row.
constexpr int32_t kNoWindow = std::numeric_limits<int32_t>::max() / 2;

CallForm form_of(const ScoreParameters& rule, const BandMask& mask) {
  const bool gated = rule.gate.form != PairGate::Form::none;
  return {.gate_columns = gated ? static_cast<int>(rule.gate.columns) : 0,
          .temperature = rule.tau != nullptr,
          .soft_cap = rule.soft_cap > 0.0f,
          .alibi = rule.alibi != nullptr,
          .causal = mask.causal,
          .window = mask.window > 0,
          .documents = !mask.doc_start.empty()};
}

// Null where none serves.
const Unit* unit_for(const Machine& machine, int64_t head_dim, const CallForm& form) {
  for (const Unit& unit : units())
    if (serves(unit, machine, head_dim) && knows(unit.score, form) && knows(unit.mask, form))
      return &unit;
  return nullptr;
}

// Without visits the question is about sizes alone.
template <class P>
Reason reason_against(const P& p) {
  if (Reason why = why_not_sizes(p.sizes)) return why;
  if (Reason why = why_not_rule(p.rule)) return why;
  if (Reason why = why_not_gate(p.rule)) return why;
  if (p.few != nullptr) return "CUDA kernels take no few keys more";
  const Machine machine = this_machine();
  if (Reason why = why_not_machine(machine)) return why;
  if (p.visits.empty()) return std::nullopt;
  const auto entry = band_masks().of(p.visits);
  if (entry->mask.why_not) return fmt::format("CUDA kernels do not know {}", *entry->mask.why_not);
  if (const Reason why = why_not_gate(p.rule.gate, entry->mask))
    return fmt::format("CUDA kernels do not know {}", *why);
  if (unit_for(machine, p.sizes.head_dim, form_of(p.rule, entry->mask)) == nullptr)
    return "this build or this GPU lacks the kernel for this score, mask and head size";
  return std::nullopt;
}

template <class P>
Problem problem_of(const P& p, const BandMasks::Entry& entry) {
  const BandMask& mask = entry.mask;
  Problem out = operands_of(p);
  out.query_offset = static_cast<int32_t>(mask.query_offset);
  out.temperature = p.rule.tau;
  out.softcap = p.rule.soft_cap;
  out.slopes = p.rule.alibi;
  out.sink_logit = p.rule.sink_logit;
  out.window =
      mask.window > 0 && mask.window < kNoWindow ? static_cast<int32_t>(mask.window) : kNoWindow;
  out.sinks = static_cast<int32_t>(mask.sinks);
  out.doc_start = entry.doc_start;
  out.doc_batch = entry.visits.size() > 1 ? p.sizes.queries : 0;
  return out;
}

// The unit for a call that why_not() allows.
template <class P>
const Unit& checked_unit(const P& p) {
  if (const Reason why = reason_against(p)) fail<UnsupportedError>("cuda", "{}", *why);
  require<ShapeError>(!p.visits.empty(), "cuda", "expected the visits of the call; got none");
  const auto entry = band_masks().of(p.visits);
  return *unit_for(this_machine(), p.sizes.head_dim, form_of(p.rule, entry->mask));
}

}  // namespace

std::optional<std::string> why_not(const AttentionForward<BFloat16>& p) {
  if (p.stats != nullptr) return "CUDA kernels have no telemetry";
  return reason_against(p);
}

std::optional<std::string> why_not(const AttentionBackward<BFloat16>& p) {
  return reason_against(p);
}

void run(const AttentionForward<BFloat16>& p) {
  if (p.sizes.batch == 0 || p.sizes.queries == 0) return;
  const Unit& unit = checked_unit(p);
  const Stream stream = services().stream();
  const auto entry = band_masks().on_device(p.visits, stream);
  Problem problem = problem_of(p, *entry);
  const int64_t rows = p.sizes.batch * p.sizes.heads * p.sizes.queries;
  std::optional<Scratch> unasked;
  if (problem.lse == nullptr) {
    unasked.emplace(Scratch::room<float>(rows));
    problem.lse = unasked->take<float>(rows);
  }
  const GateCall gate(p.rule.gate, gate_chunks(unit.score), problem, stream);
  check(unit.forward(problem, stream), "attention");
}

void run(const AttentionBackward<BFloat16>& p) {
  if (p.sizes.batch == 0 || p.sizes.queries == 0) return;
  const Unit& unit = checked_unit(p);
  const Stream stream = services().stream();
  const auto entry = band_masks().on_device(p.visits, stream);
  Problem problem = problem_of(p, *entry);
  set_gradients(problem, p);
  problem.d_temperature = p.dtau;
  problem.d_sink_logit = p.dsink;
  const int64_t rows = p.sizes.batch * p.sizes.heads * problem.padded;
  Scratch scratch(3 * Scratch::room<float>(rows) + Scratch::room<float>(rows * p.sizes.head_dim));
  problem.lse2 = scratch.take<float>(rows);
  problem.delta = scratch.take<float>(rows);
  if (p.dtau != nullptr) problem.temperature_sum = zeros(scratch, rows, stream);
  problem.dq_sum = zeros(scratch, rows * p.sizes.head_dim, stream);
  GateCall gate(p.rule.gate, gate_chunks(unit.score), problem, stream);
  gate.want_gradients(problem, p.dgate_query, p.dgate_key, stream);
  check(unit.before(problem, stream), "the row sums of attention's gradient");
  check(unit.backward(problem, stream), "attention's gradient");
  check(unit.after(problem, unit.per_row(), false, stream), "the end of attention's gradient");
  GateCall::finish(problem, stream);
}

}  // namespace fovea::kernels::cuda
