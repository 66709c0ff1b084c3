// Decoding with mixed pairs: checks, memory, threads.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/decode/mixing_decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "fovea/base/error.h"
#include "fovea/kernels/cpu/arena.h"
#include "fovea/kernels/cpu/decode/mixing_decode_table.h"
#include "fovea/kernels/cpu/kernel_levels.h"
#include "fovea/kernels/cpu/mixing/mixing_driver.h"
#include "fovea/kernels/cpu/pointwise/attention_gate_pack.h"

namespace fovea::kernels {

template <class T>
const MixingDecodeTable<T>& mixing_decode_table() {
  return chosen_kernels<MixingDecodeTable<T>>();
}
template const MixingDecodeTable<float>& mixing_decode_table();
template const MixingDecodeTable<BFloat16>& mixing_decode_table();

template <class T>
std::string_view mixing_decode_isa() {
  return mixing_decode_table<T>().isa;
}
template std::string_view mixing_decode_isa<float>();
template std::string_view mixing_decode_isa<BFloat16>();

std::optional<std::string> why_not_mixing_decode(const AttentionSizes& sizes,
                                                 const ScoreParameters& rule,
                                                 const MixingRule& mixing) {
  if (auto why = why_not_mixing_kernels(sizes, mixing)) return why;
  if (rule.dropout > 0.0f) return "decoding has no dropout";
  if (sizes.queries > kMostMixingQueries)
    return fmt::format("decoding with mixed pairs is for at most {} queries; got {}",
                       kMostMixingQueries, sizes.queries);
  return std::nullopt;
}

namespace {

// Starting the threads costs as much as this many products: some 5 us.
constexpr int64_t kParallelMixing = 1 << 17;

/// One sequence of the batch.
template <class T>
class DecodedSequence {
 public:
  DecodedSequence(const MixingDecode<T>& p, const MixingDecodeTable<T>& table, int64_t b)
      : p_(p), table_(table), b_(b), gate_(gate_rule(p.rule.gate)) {
    const AttentionSizes& s = p.sizes;
    const auto at = [b](auto rows) {
      rows.data += b * rows.batch;
      return rows;
    };
    t_ = {.key_width = width(s.head_dim),
          .value_width = width(s.value_dim),
          .heads = s.heads,
          .kv_heads = s.kv_heads,
          .results = p.results,
          .q = at(p.q),
          .k = at(p.k),
          .v = at(p.v),
          .out = at(p.out),
          .lse = p.lse != nullptr ? p.lse + b * s.heads * p.results : nullptr,
          .near = near_.data(),
          .far = far_.data(),
          .scales = scales_.data(),
          .positions = positions_.data(),
          .biased = p.rule.alibi != nullptr || p.rule.distance_bias != nullptr,
          .gate_form = gate_.form,
          .members = p.members,
          .sinks = p.rule.sink_logit,
          .mixing = p.mixing};
    rules_.reserve(static_cast<size_t>(s.heads));
    for (int64_t h = 0; h < s.heads; ++h) rules_.push_back(head_rule(p.rule, b, h));
    t_.rules = rules_.data();
    if (t_.members.active()) {
      t_.members.query += b * t_.members.query_batch;
      t_.members.key += b * t_.members.key_batch;
    }
    t_.weight_rows = p.results + p.mixing.kernel_after.earlier();
    t_.logit_rows = t_.weight_rows + p.mixing.kernel_before.earlier();
    t_.first_query = s.queries - t_.logit_rows;
    see(b);
    t_.steps = (t_.key_end - t_.key_begin + kStepKeys - 1) / kStepKeys;
    t_.pitch = 2 * kRowMargin + t_.steps * kStepKeys;
    t_.step_pitch = round_up(t_.steps, table.lanes);
  }
  DecodedSequence(const DecodedSequence&) = delete;  // the task points into it
  DecodedSequence& operator=(const DecodedSequence&) = delete;

  void run() {
    const bool parallel =
        t_.heads * t_.logit_rows * (t_.key_end - t_.key_begin) * p_.sizes.head_dim >
        kParallelMixing;
    const int64_t each = round_up(table_.scratch_floats(t_), kLine);
    const int64_t shared = place(nullptr);
    float* const memory = packed_memory(shared + Team::threads(parallel) * each);
    place(memory);
    table_.pack(t_);
    const int64_t chunks = (t_.steps + kValueSteps - 1) / kValueSteps;
    Team::run(parallel, [&](Team::Member& team) {
      float* const scratch = memory + shared + team.index() * each;
      if (t_.met != nullptr) team.each(t_.steps, [&](int64_t n) { table_.meet(t_, n); });
      if (t_.gates != nullptr)
        team.each(
            t_.steps * t_.weight_rows, [&](int64_t n) { find_gates(n); }, Meet::no);
      team.each(t_.steps * t_.kv_heads, [&](int64_t n) { table_.logits(t_, n, scratch); });
      team.each(t_.steps, [&](int64_t n) { table_.weights(t_, n, scratch); });
      team.each(t_.heads * t_.weight_rows, [&](int64_t n) { table_.normalise(t_, n); });
      if (t_.sums != nullptr) team.each(t_.steps, [&](int64_t n) { table_.sum(t_, n, scratch); });
      team.each(chunks, [&](int64_t n) { table_.values(t_, n, scratch); });
      team.each(t_.heads * t_.results, [&](int64_t n) { table_.finish(t_, n); });
    });
  }

 private:
  static constexpr int64_t kLine = 16;  // floats

  PackedWidth width(int64_t elements) const {
    const int64_t words = elements / table_.elements;
    return {.elements = elements,
            .words = words,
            .pitch = round_up(words, table_.lanes),
            .columns = round_up(elements, table_.lanes)};
  }

  // What the rows see; those before the first query see nothing.
  void see(int64_t b) {
    const AttentionSizes& s = p_.sizes;
    t_.key_begin = s.keys;
    for (int64_t r = 0; r < t_.logit_rows; ++r) {
      const int64_t n = t_.first_query + r;
      near_[r] = far_[r] = {};
      scales_[r] = 0.0f;
      positions_[r] = 0;
      if (n < 0) continue;
      const RowVisits& row = p_.rows[b * s.queries + n];
      near_[r] = row.near;
      far_[r] = row.far;
      positions_[r] = static_cast<int32_t>(row.position);
      scales_[r] = p_.rule.tau != nullptr ? 1.0f / p_.rule.tau[b * s.queries + n] : p_.rule.scale;
      for (const KeyRange& range : {row.near, row.far}) {
        if (range.begin >= range.end) continue;
        t_.key_begin = std::min(t_.key_begin, range.begin);
        t_.key_end = std::max(t_.key_end, range.end);
      }
    }
    t_.key_begin = std::min(t_.key_begin, t_.key_end) / kStepKeys * kStepKeys;
  }

  // The gate of one row of the weights on the keys of one step.
  void find_gates(int64_t item) const {
    const int64_t i = item % t_.weight_rows, step = item / t_.weight_rows;
    const int64_t row = t_.logit_rows - t_.weight_rows + i, n = t_.first_query + row;
    if (n < 0) return;
    const PairGate& gate = p_.rule.gate;
    const int64_t begin = t_.key_begin + step * kStepKeys;
    attention_table<T>().gate_row({.rule = gate_,
                                   .columns = gate.columns,
                                   .query = gate.query + b_ * gate.query_batch + n * gate.columns,
                                   .keys = gate.key + b_ * gate.key_batch,
                                   .near = near_[row],
                                   .far = far_[row],
                                   .position = positions_[row],
                                   .begin = begin,
                                   .end = std::min(begin + kStepKeys, t_.key_end),
                                   .values = t_.gates + i * t_.pitch + kRowMargin - t_.key_begin});
  }

  // Floats that all threads share; their places where there is memory.
  int64_t place(float* memory) {
    Arena arena(memory);
    const int64_t rows = t_.heads * t_.weight_rows, results = t_.heads * t_.results;
    t_.queries = arena.allocate(t_.heads * t_.logit_rows * t_.key_width.pitch);
    t_.logits = arena.allocate(t_.heads * t_.logit_rows * t_.pitch);
    t_.weights = arena.allocate(rows * t_.pitch);
    t_.tops = arena.allocate(rows * t_.step_pitch);
    t_.totals = arena.allocate(rows * t_.step_pitch);
    if (p_.mixing.renormalise && p_.mixing.kernel_after.active())
      t_.sums = arena.allocate(results * t_.steps);
    t_.parts = arena.allocate((t_.steps + kValueSteps - 1) / kValueSteps * results *
                              t_.value_width.columns);
    t_.gates = gate_.active() ? arena.allocate(t_.weight_rows * t_.pitch) : nullptr;
    t_.met = t_.members.active()
                 ? reinterpret_cast<uint64_t*>(arena.allocate(2 * t_.logit_rows * t_.steps))
                 : nullptr;
    const std::vector<float> turned = outputs_first(p_.mixing.mix_after, t_.heads);
    float* const mix = arena.allocate(std::ssize(turned));
    if (memory == nullptr) return arena.used();
    std::fill_n(t_.tops, rows * t_.step_pitch, -std::numeric_limits<float>::infinity());
    std::fill_n(t_.totals, rows * t_.step_pitch, 0.0f);
    if (!turned.empty()) {
      std::ranges::copy(turned, mix);
      t_.mix_after = mix;
    }
    return arena.used();
  }

  const MixingDecode<T>& p_;
  const MixingDecodeTable<T>& table_;
  std::array<KeyRange, kMostLogitRows> near_, far_;
  std::array<float, kMostLogitRows> scales_;
  std::array<int32_t, kMostLogitRows> positions_;
  std::vector<HeadRule> rules_;
  const int64_t b_;
  const GateRule gate_;
  MixingDecodeTask<T> t_;
};

template <class T>
void check_mixing_decode(const MixingDecode<T>& p) {
  const AttentionSizes& s = p.sizes;
  if (const auto why = why_not_mixing_decode(s, p.rule, p.mixing))
    fail<UnsupportedError>("mixing decode kernel", "{}", *why);
  check_sizes(s, p.rule.gate);
  require<ShapeError>(std::ssize(p.rows) == s.batch * s.queries, "mixing decode kernel",
                      "expected the visits of {} rows; got {}", s.batch * s.queries, p.rows.size());
  require<ShapeError>(p.results >= 0 && p.results <= s.queries, "mixing decode kernel",
                      "expected 0 to {} rows of results; got {}", s.queries, p.results);
  for (const RowVisits& row : p.rows) {
    for (const KeyRange& range : {row.near, row.far}) {
      require<ShapeError>(range.begin >= range.end || (range.begin >= 0 && range.end <= s.keys),
                          "mixing decode kernel", "rows see keys [0, {}); got [{}, {})", s.keys,
                          range.begin, range.end);
    }
  }
}

}  // namespace

template <class T>
void run(const MixingDecode<T>& problem, const MixingDecodeTable<T>* table) {
  check_mixing_decode(problem);
  if (problem.sizes.heads * problem.results == 0) return;
  for (int64_t b = 0; b < problem.sizes.batch; ++b)
    DecodedSequence<T>(problem, table != nullptr ? *table : mixing_decode_table<T>(), b).run();
}
template void run(const MixingDecode<float>&, const MixingDecodeTable<float>*);
template void run(const MixingDecode<BFloat16>&, const MixingDecodeTable<BFloat16>*);

}  // namespace fovea::kernels
