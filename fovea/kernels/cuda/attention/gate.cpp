// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cuda/attention/gate.h"

#include <algorithm>

#include "fovea/kernels/cuda/machine.h"

namespace fovea::kernels::cuda {
namespace {

// Tiles of queries have up to 192 rows and may begin at the last token.
int32_t padded_tokens(int64_t tokens) {
  return static_cast<int32_t>((tokens + kEntryAlign - 1) / kEntryAlign * kEntryAlign + kEntryAlign);
}

int32_t limited(int64_t distance) {
  return static_cast<int32_t>(
      std::clamp<int64_t>(distance, 0, std::numeric_limits<int32_t>::max() / 4));
}

GateKind kind_of(PairGate::Form form) {
  switch (form) {
    case PairGate::Form::none:
      return GateKind::none;
    case PairGate::Form::weight:
    case PairGate::Form::capped_weight:
      return GateKind::weight;
    case PairGate::Form::sigmoid_weight:  // in the exponent, which has room for any weight
    case PairGate::Form::log_sigmoid:
      return GateKind::log_sigmoid;
    case PairGate::Form::sigmoid_logit:
      return GateKind::sigmoid_logit;
  }
  return GateKind::none;
}

}  // namespace

Reason why_not_gate(const ScoreParameters& rule) {
  if (rule.gate.form == PairGate::Form::none) return std::nullopt;
  if (rule.gate.columns > kGateColumns)
    return fmt::format("CUDA kernels take soft gates of Focus of {} columns at most", kGateColumns);
  if (rule.soft_cap > 0.0f) return "CUDA kernels have no soft gate of Focus beside a soft-cap";
  return std::nullopt;
}

Reason why_not_gate(const PairGate& gate, const BandMask& mask) {
  if (gate.form != PairGate::Form::none && gate.sinks > 0 && !mask.from_start)
    return "sinks of Focus in a document that lacks its start";
  return std::nullopt;
}

GateCall::GateCall(const PairGate& gate, int chunks, Problem& problem, Stream stream) {
  problem.gate = kind_of(gate.form);
  if (problem.gate == GateKind::none) return;
  problem.gate_offset = gate.offset;
  problem.gate_most = gate.form == PairGate::Form::capped_weight
                          ? 1.0f + gate.offset
                          : std::numeric_limits<float>::infinity();
  problem.gate_window = limited(gate.window);
  problem.gate_sinks = limited(gate.sinks);
  problem.gate_columns = static_cast<int32_t>(gate.columns);
  problem.gate_chunks = chunks;
  const int32_t queries = padded_tokens(problem.queries), keys = padded_tokens(problem.keys);
  const auto batch_of = [&](int32_t tokens) { return int64_t{tokens} * chunks * 4; };
  const int64_t batch = problem.batch;
  factors_.emplace(2 * (Scratch::room<uint64_t>(batch * batch_of(queries)) +
                        Scratch::room<uint64_t>(batch * batch_of(keys))));
  const auto pack = [&](const float* from, int64_t from_batch, int32_t tokens, int32_t padded) {
    GatePacking side{.from = from,
                     .from_batch = from_batch,
                     .batch = problem.batch,
                     .tokens = tokens,
                     .padded = padded,
                     .columns = problem.gate_columns,
                     .chunks = chunks,
                     .rows = factors_->take<uint64_t>(batch * batch_of(padded)),
                     .pairs = factors_->take<uint64_t>(batch * batch_of(padded))};
    check(pack_gate(side, stream), "the gate of Focus");
    return GateFactors{.rows = side.rows, .pairs = side.pairs, .batch = batch_of(padded)};
  };
  problem.gate_query = pack(gate.query, gate.query_batch, problem.queries, queries);
  problem.gate_key = pack(gate.key, gate.key_batch, problem.keys, keys);
}

void GateCall::want_gradients(Problem& problem, float* d_query, float* d_key, Stream stream) {
  if (problem.gate == GateKind::none || d_query == nullptr || d_key == nullptr) return;
  problem.d_gate_query = d_query;
  problem.d_gate_key = d_key;
  const int64_t count =
      int64_t{problem.batch} * problem.heads * problem.gate_chunks * problem.padded * 8;
  sums_.emplace(Scratch::room<float>(count));
  problem.gate_query_sum = zeros(*sums_, count, stream);
}

void GateCall::finish(const Problem& problem, Stream stream) {
  if (problem.d_gate_query == nullptr) return;
  check(finish_gate(problem, stream), "the gradient of the gate of Focus");
}

}  // namespace fovea::kernels::cuda
