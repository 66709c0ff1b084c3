// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cuda/attention/focus.h"

#include <algorithm>

#include "fovea/kernels/cuda/attention/operands.h"
#include "fovea/kernels/cuda/attention/units.h"
#include "fovea/kernels/cuda/machine.h"

namespace fovea::kernels::cuda {
namespace {

constexpr int64_t kMostGroups = 64;  // bits of a membership

/// The kernels of both passes; null where this build or machine lacks one.
struct Passes {
  const Unit *groups = nullptr, *rest = nullptr;
  explicit operator bool() const { return groups != nullptr && rest != nullptr; }
};

Passes passes_for(const Machine& machine, int64_t head_dim, int64_t most_groups) {
  const MaskForm by_groups = most_groups > 1 ? MaskForm::groups_several : MaskForm::groups;
  Passes out;
  for (const Unit& unit : units()) {
    if (!serves(unit, machine, head_dim) || unit.score != ScoreForm::plain) continue;
    if (unit.mask == by_groups) out.groups = &unit;
    if (unit.mask == MaskForm::local_rest) out.rest = &unit;
  }
  return out;
}

template <class P>
Reason reason_against(const P& p) {
  if (Reason why = why_not_sizes(p.sizes)) return why;
  if (Reason why = why_not_rule(p.rule)) return why;
  if (p.rule.tau != nullptr || p.rule.soft_cap > 0.0f || p.rule.alibi != nullptr ||
      p.rule.sink_logit != nullptr || p.rule.gate.form != PairGate::Form::none)
    return "CUDA kernels of hard Focus have plain scores";
  if (p.groups.rule.mask != MaskRule{})
    return "CUDA kernels of hard Focus have the causal mask alone";
  if (p.sizes.queries != p.sizes.keys)
    return "CUDA kernels of hard Focus take as many queries as keys";
  const Machine machine = this_machine();
  if (Reason why = why_not_machine(machine)) return why;
  if (!passes_for(machine, p.sizes.head_dim, p.groups.most_groups))
    return "this build or this GPU lacks the kernels of hard Focus for this head size";
  return std::nullopt;
}

// The plan's arrays, and what both passes share, in scratch.
template <class P>
class Planned {
 public:
  explicit Planned(const P& p) : Planned(p, operands_of(p)) {}

  /// With the arguments of both passes; the entries are made by the stream.
  const Problem& problem() const { return problem_; }
  Problem& problem() { return problem_; }

 private:
  Planned(const P& p, Problem problem) : problem_(sized(p, problem)), scratch_(bytes(problem_)) {
    Problem& x = problem_;
    const int64_t entries = x.batch * x.entries, segments = entries / kEntryAlign,
                  slots = int64_t{x.batch} * x.slots * x.keys;
    auto* const row_entry = scratch_.template take<int32_t>(slots);
    x.entry_token = scratch_.template take<int32_t>(entries);
    x.entry_row = scratch_.template take<int32_t>(entries);
    x.entry_set = scratch_.template take<uint64_t>(entries);
    x.entry_hides = scratch_.template take<uint64_t>(entries);
    x.segment_start = scratch_.template take<int32_t>(segments);
    x.segment_end = scratch_.template take<int32_t>(segments);
    x.row_entry = row_entry;
    const Stream stream = services().stream();
    fill_with_zeros(row_entry, slots * int64_t{sizeof(int32_t)}, stream);
    check(sort_groups(x, 1, stream), "the plan of hard Focus");
  }

  static Problem sized(const P& p, Problem x) {
    const auto most = [&x](int64_t n) {
      return static_cast<int32_t>(std::min(n, int64_t{x.keys}));
    };
    x.window = most(p.groups.rule.window);
    x.sinks = most(p.groups.rule.sinks);
    x.groups = static_cast<int32_t>(p.groups.rule.groups);
    x.slots = static_cast<int32_t>(std::min(p.groups.most_groups, p.groups.rule.groups));
    x.membership = p.groups.members;
    x.membership_batch = x.keys;
    const int64_t real = int64_t{x.slots} * x.keys;
    x.entries = (real + kEntryAlign - 1) / kEntryAlign * kEntryAlign + x.groups * kEntryAlign;
    x.plan_batch = 1;
    return x;
  }
  static int64_t bytes(const Problem& x) {
    const int64_t entries = x.batch * x.entries;
    return Scratch::room<int32_t>(int64_t{x.batch} * x.slots * x.keys) +
           2 * (Scratch::room<int32_t>(entries) + Scratch::room<uint64_t>(entries) +
                Scratch::room<int32_t>(entries / kEntryAlign));
  }

  Problem problem_;
  Scratch scratch_;
};

template <class P>
Passes checked_passes(const P& p) {
  if (const Reason why = reason_against(p)) fail<UnsupportedError>("cuda", "{}", *why);
  const GroupedRule& rule = p.groups.rule;
  require<ShapeError>(rule.groups >= 1 && rule.groups <= kMostGroups && p.groups.most_groups >= 1,
                      "cuda", "expected 1 to {} groups and at least one of a token; got {} and {}",
                      kMostGroups, rule.groups, p.groups.most_groups);
  return passes_for(this_machine(), p.sizes.head_dim, p.groups.most_groups);
}

}  // namespace

std::optional<std::string> why_not(const FocusForward<BFloat16>& p) { return reason_against(p); }
std::optional<std::string> why_not(const FocusBackward<BFloat16>& p) { return reason_against(p); }

void run(const FocusForward<BFloat16>& p) {
  if (p.sizes.batch == 0 || p.sizes.queries == 0) return;
  const Passes passes = checked_passes(p);
  Planned planned(p);
  Problem& x = planned.problem();
  const Stream stream = services().stream();
  const int64_t heads = int64_t{x.batch} * x.heads, rows = int64_t{x.slots} * x.queries,
                width = p.sizes.head_dim;
  Scratch scratch(Scratch::room<BFloat16>(heads * rows * width) +
                  Scratch::room<float>(heads * rows));
  x.partial = {scratch.take<BFloat16>(heads * rows * width), x.heads * rows * width, rows * width,
               width};
  x.partial_lse = scratch.take<float>(heads * rows);
  check(passes.groups->forward(x, stream), "hard Focus inside groups");
  check(passes.rest->forward(x, stream), "hard Focus between near tokens");
}

void run(const FocusBackward<BFloat16>& p) {
  if (p.sizes.batch == 0 || p.sizes.queries == 0) return;
  const Passes passes = checked_passes(p);
  Planned planned(p);
  Problem& x = planned.problem();
  set_gradients(x, p);
  const Stream stream = services().stream();
  const int64_t heads = int64_t{x.batch} * x.heads, rows = heads * x.padded,
                keys = int64_t{x.batch} * x.kv_heads * x.keys, width = p.sizes.head_dim,
                entries = heads * x.entries;
  Scratch scratch(2 * Scratch::room<float>(rows) + Scratch::room<float>(rows * width) +
                  Scratch::room<float>(entries * width) + 2 * Scratch::room<float>(keys * width));
  x.lse2 = scratch.take<float>(rows);
  x.delta = scratch.take<float>(rows);
  x.dq_sum = zeros(scratch, rows * width, stream);
  x.dq_entries = zeros(scratch, entries * width, stream);
  x.dk_sum = zeros(scratch, keys * width, stream);
  x.dv_sum = zeros(scratch, keys * width, stream);
  check(passes.rest->before(x, stream), "the row sums of hard Focus' gradient");
  check(passes.groups->backward(x, stream), "the gradient inside groups");
  check(passes.rest->backward(x, stream), "the gradient between near tokens");
  check(passes.rest->after(x, false, true, stream), "the end of hard Focus' gradient");
}

}  // namespace fovea::kernels::cuda
