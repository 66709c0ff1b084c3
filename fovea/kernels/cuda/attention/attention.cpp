// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cuda/attention/attention.h"

#include <limits>

#include "fovea/base/error.h"
#include "fovea/kernels/cuda/attention/band_masks.h"
#include "fovea/kernels/cuda/attention/units.h"

namespace fovea::kernels::cuda {
namespace {

using Reason = std::optional<std::string>;

// Indices of rows are 32 bits wide, and a window that is none must not overflow beside one.
constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max() / 4;
constexpr int32_t kNoWindow = std::numeric_limits<int32_t>::max() / 2;

// The generation of a machine's kernels; wgmma exists on 9.0 alone.
std::optional<Generation> generation_of(const Machine& machine) {
  const auto built = [](Generation wanted) {
    for (const Unit& unit : units())
      if (unit.generation == wanted) return true;
    return false;
  };
  if (machine.major == 9 && machine.minor == 0 && built(Generation::wgmma))
    return Generation::wgmma;
  if (machine.major >= 8 && built(Generation::mma)) return Generation::mma;
  return std::nullopt;
}

CallForm form_of(const ScoreParameters& rule, const BandMask& mask) {
  return {.temperature = rule.tau != nullptr,
          .soft_cap = rule.soft_cap > 0.0f,
          .alibi = rule.alibi != nullptr,
          .causal = mask.causal,
          .window = mask.window > 0,
          .documents = !mask.doc_start.empty()};
}

// Null where none serves.
const Unit* unit_for(const Machine& machine, int64_t head_dim, const CallForm& form) {
  const std::optional<Generation> generation = generation_of(machine);
  for (const Unit& unit : units())
    if (unit.generation == generation && unit.head_dim == head_dim && knows(unit.score, form) &&
        knows(unit.mask, form) && unit.forward_shared_bytes <= machine.shared_bytes &&
        unit.backward_shared_bytes <= machine.shared_bytes)
      return &unit;
  return nullptr;
}

Reason why_not_sizes(const AttentionSizes& sizes) {
  if (sizes.head_dim != sizes.value_dim) return "CUDA kernels take heads and values of one width";
  if (sizes.head_dim != 64 && sizes.head_dim != 128)
    return "CUDA kernels have head sizes 64 and 128";
  if (sizes.queries >= kMostRows || sizes.keys >= kMostRows)
    return "CUDA kernels take texts of fewer than 2^29 tokens";
  return std::nullopt;
}

Reason why_not_rule(const ScoreParameters& rule) {
  if (rule.dropout > 0.0f) return "CUDA kernels have no dropout";
  if (rule.distance_bias != nullptr) return "CUDA kernels have no T5 bias";
  if (rule.gate.form != PairGate::Form::none) return "CUDA kernels have no soft gate of Focus";
  return std::nullopt;
}

// Without visits the question is about sizes alone.
template <class P>
Reason reason_against(const P& p) {
  if (Reason why = why_not_sizes(p.sizes)) return why;
  if (Reason why = why_not_rule(p.rule)) return why;
  if (p.few != nullptr) return "CUDA kernels take no few keys more";
  const Machine machine = this_machine();
  if (!generation_of(machine))
    return fmt::format("this build has no CUDA kernels for compute capability {}.{}", machine.major,
                       machine.minor);
  if (p.visits.empty()) return std::nullopt;
  const auto entry = band_masks().of(p.visits);
  if (entry->mask.why_not) return fmt::format("CUDA kernels do not know {}", *entry->mask.why_not);
  if (unit_for(machine, p.sizes.head_dim, form_of(p.rule, entry->mask)) == nullptr)
    return "this build or this GPU lacks the kernel for this score, mask and head size";
  return std::nullopt;
}

// Copies read 16 bytes at once.
template <class T>
Rows rows_of(const HeadRows<T>& x, const char* name) {
  const bool aligned = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.row % 8 == 0 &&
                       x.head % 8 == 0 && x.batch % 8 == 0;
  require<ShapeError>(aligned, "cuda",
                      "expected {} with rows of 16-byte alignment; got strides {}, {}, {}", name,
                      x.batch, x.head, x.row);
  return {const_cast<std::remove_const_t<T>*>(x.data), x.batch, x.head, x.row};
}

template <class P>
Problem problem_of(const P& p, const BandMasks::Entry& entry) {
  const BandMask& mask = entry.mask;
  Problem out{};
  out.q = rows_of(p.q, "q");
  out.k = rows_of(p.k, "k");
  out.v = rows_of(p.v, "v");
  out.o = rows_of(p.out, "out");
  out.lse = const_cast<float*>(p.lse);
  out.batch = static_cast<int32_t>(p.sizes.batch);
  out.heads = static_cast<int32_t>(p.sizes.heads);
  out.kv_heads = static_cast<int32_t>(p.sizes.kv_heads);
  out.queries = static_cast<int32_t>(p.sizes.queries);
  out.keys = static_cast<int32_t>(p.sizes.keys);
  out.query_offset = static_cast<int32_t>(mask.query_offset);
  out.scale = p.rule.scale;
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

std::string_view attention_isa() {
  const std::optional<Generation> generation = generation_of(this_machine());
  if (!generation) return {};
  return *generation == Generation::wgmma ? "sm_90a wgmma" : "sm_80 mma";
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
  check(unit.forward(problem, stream), "attention");
}

void run(const AttentionBackward<BFloat16>& p) {
  if (p.sizes.batch == 0 || p.sizes.queries == 0) return;
  const Unit& unit = checked_unit(p);
  const Stream stream = services().stream();
  const auto entry = band_masks().on_device(p.visits, stream);
  Problem problem = problem_of(p, *entry);
  problem.d_o = rows_of(p.dout, "dout");
  problem.dq = rows_of(p.dq, "dq");
  problem.dk = rows_of(p.dk, "dk");
  problem.dv = rows_of(p.dv, "dv");
  problem.d_lse = p.dlse;
  problem.d_temperature = p.dtau;
  problem.d_sink_logit = p.dsink;
  problem.padded = (p.sizes.queries / kEntryAlign + 1) * kEntryAlign;

  const int64_t heads = p.sizes.batch * p.sizes.heads, rows = heads * problem.padded;
  Scratch scratch(2 * Scratch::room<float>(rows) + Scratch::room<float>(rows * p.sizes.head_dim));
  problem.lse2 = scratch.take<float>(rows);
  problem.delta = scratch.take<float>(rows);
  problem.dq_sum = scratch.take<float>(rows * p.sizes.head_dim);
  fill_with_zeros(problem.dq_sum, rows * p.sizes.head_dim * int64_t{sizeof(float)}, stream);
  check(unit.before(problem, stream), "the row sums of attention's gradient");
  check(unit.backward(problem, stream), "attention's gradient");
  check(unit.after(problem, unit.per_row(), false, stream), "the end of attention's gradient");
}

}  // namespace fovea::kernels::cuda
