// The backward pass of the mixing kernels over a batch: packing, tasks, sums.
//
// A unit is the smallest set of heads of one row of the batch that holds whole bundles and whole
// key heads. Its tasks are (bundle, partition p of R): strips p, p + R, ... Round robin balances
// the causal triangle. Every task has sums of its own for dK, dV, kernels and mixes, every strip
// for dQ; all are added in order afterwards. R depends on the number of queries alone, so results
// do not depend on threads or batch.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/kernels/cpu/mixing/mixing_driver.h"
#include "fovea/kernels/cpu/mixing/mixing_gradient_task.h"
#include "fovea/kernels/cpu/mixing/mixing_pairs.h"
#include "fovea/kernels/cpu/pointwise/row_turns.h"

namespace fovea::kernels {
namespace {

// More would let more threads share one unit; each takes the memory of dK and dV.
int64_t partitions(int64_t queries) { return std::clamp<int64_t>(queries / 256, 1, 4); }

// Rows that are summed by one task.
constexpr int64_t kRowsOfTask = 256;

std::vector<float> turned(const float* weights, int64_t heads, int64_t width) {
  return outputs_first({weights, width}, heads);
}

// Heads [head, head + heads of a unit) of one row of the batch.
struct Unit {
  int64_t b = 0, head = 0;
  float* memory = nullptr;
};

// What a task has summed: MixingGradientSums points into it.
struct TaskSums {
  std::vector<double> kernel_before, kernel_after, mix_before, mix_after, row, bias;
  std::vector<float> gate_query, gate_key;
};

template <class T>
class Backward {
 public:
  Backward(const MixingBackward<T>& problem, const MixingTable<T>* table)
      : p_(problem),
        s_(problem.sizes),
        m_(problem.mixing),
        table_(table != nullptr ? *table : mixing_table<T>()),
        shape_(s_, m_, table_),
        query_heads_(s_.heads / s_.kv_heads),
        unit_heads_(std::lcm(shape_.bundle, query_heads_)),
        keys_(round_up(s_.keys, kStepKeys)),
        strips_((s_.queries + kGradientRows - 1) / kGradientRows),
        parts_(std::min(partitions(s_.queries), strips_)),
        turns_(problem, problem.rule.soft_cap <= 0.0f),
        dq_columns_(query_columns(shape_.key, turns_.wanted())),
        mix_after_(outputs_first(m_.mix_after, s_.heads)),
        pairs_(problem) {
    if (m_.mix_before.active())
      before_back_ = turned(m_.mix_before.weights, s_.heads, m_.mix_before.width);
    for (const Visits& visits : p_.visits) {
      plans_.push_back(make_strip_plan(visits, kGradientRows, m_.earlier(), false));
      steps_.push_back(steps_of(plans_.back()));
    }
  }

  int64_t floats() const {
    return units_at_once() * unit_floats() + Team::threads(parallel()) * scratch_floats();
  }

  void run() {
    const int64_t units = s_.batch * (s_.heads / unit_heads_), at_once = units_at_once();
    const int64_t columns = p_.rule.gate.columns;
    if (p_.dgate_query != nullptr) {
      std::fill_n(p_.dgate_query, s_.batch * s_.queries * columns, 0.0f);
      std::fill_n(p_.dgate_key, s_.batch * s_.keys * columns, 0.0f);
    }
    float* const memory = packed_memory(floats());
    for (int64_t first = 0; first < units; first += at_once) {
      std::vector<Unit> wave;
      for (int64_t n = first; n < std::min(first + at_once, units); ++n) {
        const int64_t of_row = s_.heads / unit_heads_;
        wave.push_back(
            {n / of_row, n % of_row * unit_heads_, memory + (n - first) * unit_floats()});
      }
      run_units(wave, memory + at_once * unit_floats());
    }
    turns_.write_gradients();
  }

 private:
  // Steps [first, last) of every strip.
  struct Steps {
    std::vector<int32_t> first, last;
    int64_t most = 1;
  };
  static Steps steps_of(const StripPlan& plan) {
    Steps all;
    for (int64_t s = 0; s < plan.strips(); ++s) {
      const int64_t begin = plan.begin[s], end = plan.begin[s + 1];
      all.first.push_back(begin < end ? plan.steps[begin] : 0);
      all.last.push_back(begin < end ? plan.steps[end - 1] + 1 : 0);
      all.most = std::max<int64_t>(all.most, all.last.back() - all.first.back());
    }
    return all;
  }

  bool parallel() const { return products(s_) > kParallelProducts; }
  int64_t bundles() const { return unit_heads_ / shape_.bundle; }
  int64_t tasks_of_unit() const { return bundles() * parts_; }
  int64_t units_at_once() const {
    const int64_t threads = Team::threads(parallel());
    if (threads == 1) return 1;
    const int64_t all = s_.batch * (s_.heads / unit_heads_);
    return std::clamp<int64_t>((2 * threads + tasks_of_unit() - 1) / tasks_of_unit(), 1, all);
  }

  // ---- memory of a unit: packed key heads, then the sums of query heads ----

  int64_t pair_floats() const {
    return keys_ * (shape_.key.pitch + shape_.key.columns / table_.elements + shape_.value.pitch);
  }
  int64_t frame_rows() const { return any_task().padded_frame(); }
  int64_t part_floats() const { return keys_ * (shape_.key.columns + shape_.value.columns); }
  int64_t head_floats() const {
    return parts_ * part_floats() + strips_ * frame_rows() * dq_columns_;
  }
  int64_t unit_floats() const {
    return round_up(unit_heads_ / query_heads_ * pair_floats() + unit_heads_ * head_floats(), 64);
  }
  // Of the key head of head `h` of the unit.
  float* key_columns(const Unit& unit, int64_t h) const {
    return unit.memory + h / query_heads_ * pair_floats();
  }
  float* key_rows(const Unit& unit, int64_t h) const {
    return key_columns(unit, h) + keys_ * shape_.key.pitch;
  }
  float* value_columns(const Unit& unit, int64_t h) const {
    return key_rows(unit, h) + keys_ * shape_.key.columns / table_.elements;
  }
  float* dq_of(const Unit& unit, int64_t h) const {
    return unit.memory + unit_heads_ / query_heads_ * pair_floats() + h * head_floats();
  }
  float* dk_of(const Unit& unit, int64_t h, int64_t part) const {
    return dq_of(unit, h) + strips_ * frame_rows() * dq_columns_ + part * part_floats();
  }
  float* dv_of(const Unit& unit, int64_t h, int64_t part) const {
    return dk_of(unit, h, part) + keys_ * shape_.key.columns;
  }

  int64_t scratch_floats() const {
    int64_t most = table_.panel * std::max(shape_.key.pitch, shape_.value.pitch);
    for (const Steps& steps : steps_) {
      MixingGradientTask<T> task = any_task();
      task.terms.gate = pairs_.gate();
      task.most_steps = steps.most;
      most = std::max(most, table_.gradient.scratch(task));
    }
    return round_up(most, 64);
  }

  // ---- the wave ----

  void run_units(const std::vector<Unit>& units, float* scratch) const {
    const int64_t count = std::ssize(units), pairs = unit_heads_ / query_heads_;
    const int64_t panels = keys_ / table_.panel, each = scratch_floats();
    const int64_t query_tasks = (s_.queries + kRowsOfTask - 1) / kRowsOfTask;
    const int64_t key_tasks = (s_.keys + kRowsOfTask - 1) / kRowsOfTask;
    std::vector<TaskSums> sums(static_cast<size_t>(count * tasks_of_unit()));
    Team::run(parallel(), [&](Team::Member& team) {
      float* const mine = scratch + team.index() * each;
      team.each(count * pairs * panels, [&](int64_t n) {
        pack(units[n / (pairs * panels)], n / panels % pairs, n % panels, mine);
      });
      team.each_in_turn(count * tasks_of_unit(), [&](int64_t n) {
        run_task(units[n / tasks_of_unit()], n % tasks_of_unit(), sums[n], mine);
      });
      team.each(
          count * unit_heads_ * query_tasks,
          [&](int64_t n) {
            sum_queries(units[n / query_tasks / unit_heads_], n / query_tasks % unit_heads_,
                        n % query_tasks * kRowsOfTask);
          },
          Meet::no);
      team.each(
          count * pairs * key_tasks,
          [&](int64_t n) {
            sum_keys(units[n / key_tasks / pairs], n / key_tasks % pairs,
                     n % key_tasks * kRowsOfTask);
          },
          Meet::no);
    });
    for (int64_t n = 0; n < count; ++n) sum_parameters(units[n], &sums[n * tasks_of_unit()]);
  }

  void pack(const Unit& unit, int64_t pair, int64_t panel, float* scratch) const {
    const int64_t begin = panel * table_.panel, h = pair * query_heads_;
    const int64_t rows = std::clamp<int64_t>(s_.keys - begin, 0, table_.panel);
    const int64_t g = unit.head / query_heads_ + pair, first = rows > 0 ? begin : 0;
    const T* const keys = p_.k.at(unit.b, g, first);
    table_.pack({.data = keys, .stride = p_.k.row, .rows = rows}, shape_.key,
                {.columns = key_columns(unit, h) + begin * shape_.key.pitch}, scratch);
    // dQ multiplies all keys of a step: 0 times NaN would reach rows that do not see the key.
    int32_t index[kMostPanel];
    for (int64_t r = 0; r < rows; ++r) {
      float sum = 0.0f;
      for (int64_t c = 0; c < s_.head_dim; ++c) sum += to_float(keys[r * p_.k.row + c]) * 0.0f;
      index[r] = sum == 0.0f ? static_cast<int32_t>(r) : -1;
    }
    table_.pack({.data = keys, .stride = p_.k.row, .rows = rows, .index = index}, shape_.key,
                {.rows = key_rows(unit, h) + begin / table_.elements * shape_.key.columns},
                scratch);
    table_.pack({.data = p_.v.at(unit.b, g, first), .stride = p_.v.row, .rows = rows}, shape_.value,
                {.columns = value_columns(unit, h) + begin * shape_.value.pitch}, scratch);
  }

  // What all tasks share.
  MixingGradientTask<T> any_task() const {
    return {.key_width = shape_.key,
            .value_width = shape_.value,
            .dq_columns = dq_columns_,
            .queries = s_.queries,
            .keys = s_.keys,
            .first_index = s_.keys - s_.queries,
            .heads = shape_.bundle,
            .q_row = p_.q.row,
            .dout_row = p_.dout.row,
            .rows_before = m_.kernel_before.active() ? m_.kernel_before.queries : 0,
            .keys_before = m_.kernel_before.active() ? m_.kernel_before.keys : 0,
            .rows_after = m_.kernel_after.active() ? m_.kernel_after.queries : 0,
            .keys_after = m_.kernel_after.active() ? m_.kernel_after.keys : 0,
            .mix_before = m_.mix_before.weights,
            .mix_before_back = before_back_.empty() ? nullptr : before_back_.data(),
            .mix_after = mix_after_.empty() ? nullptr : mix_after_.data(),
            .mix_after_back = m_.mix_after.weights,
            .width_before = m_.mix_before.active() ? m_.mix_before.width : 0,
            .width_after = m_.mix_after.active() ? m_.mix_after.width : 0,
            .equation = m_.equation,
            .renormalise = m_.renormalise && m_.kernel_after.active(),
            .scale = p_.rule.scale,
            .capped = p_.rule.soft_cap > 0.0f,
            .drops = p_.rule.dropout > 0.0f};
  }

  void run_task(const Unit& unit, int64_t n, TaskSums& sums, float* scratch) const {
    const int64_t part = n % parts_, first = n / parts_ * shape_.bundle;
    const size_t plan = plans_.size() == 1 ? 0 : static_cast<size_t>(unit.b);
    const Visits& visits = visits_of(p_.visits, unit.b);
    MixingGradientTask<T> task = any_task();
    std::vector<MixingGradientHead<T>> heads;
    for (int64_t h = first; h < first + shape_.bundle; ++h) heads.push_back(head_of(unit, h, part));
    task.head = heads.data();
    // Matrices of the bundle's groups.
    const int64_t head = unit.head + first;
    for (const float** matrix : {&task.mix_before, &task.mix_before_back})
      *matrix = *matrix != nullptr ? *matrix + head * task.width_before : nullptr;
    for (const float** matrix : {&task.mix_after, &task.mix_after_back})
      *matrix = *matrix != nullptr ? *matrix + head * task.width_after : nullptr;
    task.tau = p_.rule.tau != nullptr ? p_.rule.tau + unit.b * s_.queries : nullptr;
    task.sink = p_.rule.sink_logit != nullptr ? p_.rule.sink_logit + head : nullptr;
    pairs_.set(unit.b, visits, task);
    const StripPlan& strips = plans_[plan];
    task.first_row = strips.first_row.empty() ? nullptr : strips.first_row.data();
    task.first_step = steps_[plan].first.data();
    task.last_step = steps_[plan].last.data();
    task.most_steps = steps_[plan].most;
    task.strip_begin = part;
    task.strip_end = strips_;
    task.strip_step = parts_;
    task.sums = sums_of(task, sums);
    table_.gradient.run(task, scratch);
  }

  MixingGradientHead<T> head_of(const Unit& unit, int64_t h, int64_t part) const {
    const int64_t head = unit.head + h, row = (unit.b * s_.heads + head) * s_.queries;
    const auto taps = [head](const KeyQueryKernel& k) {
      return k.active() ? k.taps + head * k.queries * k.keys : nullptr;
    };
    return {.q = p_.q.at(unit.b, head),
            .dout = p_.dout.at(unit.b, head),
            .k_columns = key_columns(unit, h),
            .v_columns = value_columns(unit, h),
            .k_rows = key_rows(unit, h),
            .taps_before = taps(m_.kernel_before),
            .taps_after = taps(m_.kernel_after),
            .lse = p_.lse + row,
            .dlse = p_.dlse != nullptr ? p_.dlse + row : nullptr,
            .row_sums = p_.row_sums != nullptr ? p_.row_sums + row : nullptr,
            .rule = head_rule(p_.rule, unit.b, head),
            .dq = dq_of(unit, h),
            .dk = dk_of(unit, h, part),
            .dv = dv_of(unit, h, part)};
  }

  MixingGradientSums sums_of(const MixingGradientTask<T>& task, TaskSums& sums) const {
    const auto zeros = [&task](std::vector<double>& x, bool wanted, int64_t each) -> double* {
      if (!wanted) return nullptr;
      x.assign(static_cast<size_t>(task.heads * each), 0.0);
      return x.data();
    };
    if (p_.dgate_query != nullptr) {
      sums.gate_query.assign(static_cast<size_t>(s_.queries * pairs_.gate().pitch), 0.0f);
      sums.gate_key.assign(static_cast<size_t>(pairs_.key_floats()), 0.0f);
    }
    return {.kernel_before = zeros(sums.kernel_before, p_.dkernel_before != nullptr,
                                   task.rows_before * task.keys_before),
            .kernel_after = zeros(sums.kernel_after, p_.dkernel_after != nullptr,
                                  task.rows_after * task.keys_after),
            .mix_before = zeros(sums.mix_before, p_.dmix_before != nullptr, task.width_before),
            .mix_after = zeros(sums.mix_after, p_.dmix_after != nullptr, task.width_after),
            .row = zeros(sums.row, p_.dsink != nullptr, 1),
            .bias = zeros(sums.bias, p_.dbias != nullptr, p_.rule.bias_count),
            .gate_query = sums.gate_query.empty() ? nullptr : sums.gate_query.data(),
            .gate_key = sums.gate_key.empty() ? nullptr : sums.gate_key.data()};
  }

  // ---- sums over strips and tasks, in order ----

  // Strips add to their own rows and to those before them that convolutions reach.
  void sum_queries(const Unit& unit, int64_t h, int64_t begin) const {
    const int64_t end = std::min(begin + kRowsOfTask, s_.queries), head = unit.head + h;
    const int64_t earlier = m_.earlier(), frame = frame_rows();
    std::vector<const float*> parts;
    std::vector<int32_t> part_begin{0};
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t s = i / kGradientRows; s < strips_ && s * kGradientRows - earlier <= i; ++s) {
        const int64_t row = i - (s * kGradientRows - earlier);
        parts.push_back(dq_of(unit, h) + (s * frame + row) * dq_columns_);
      }
      part_begin.push_back(static_cast<int32_t>(parts.size()));
    }
    const int64_t number = (unit.b * s_.heads + head) * s_.queries + begin;
    const bool tau = p_.dtau != nullptr && p_.rule.tau != nullptr && !turns_.wanted();
    attention_table<T>().join({.parts = parts.data(),
                               .part_begin = part_begin.data(),
                               .rows = end - begin,
                               .width = s_.head_dim,
                               .out = p_.dq.at(unit.b, head, begin),
                               .out_row = p_.dq.row,
                               .turns = turns_.at(unit.b, head, begin),
                               .turn = shape_.key.columns,
                               .q = p_.q.at(unit.b, head, begin),
                               .q_row = p_.q.row,
                               .tau = tau ? p_.rule.tau + unit.b * s_.queries + begin : nullptr,
                               .dtau = tau ? p_.dtau + number : nullptr});
  }

  void sum_keys(const Unit& unit, int64_t pair, int64_t begin) const {
    const int64_t g = unit.head / query_heads_ + pair;
    sum_keys(unit, pair, begin, shape_.key, 0, p_.dk.at(unit.b, g, begin), p_.dk.row);
    sum_keys(unit, pair, begin, shape_.value, keys_ * shape_.key.columns,
             p_.dv.at(unit.b, g, begin), p_.dv.row);
  }
  // dK or dV, which lies `offset` floats behind the beginning of a part.
  void sum_keys(const Unit& unit, int64_t pair, int64_t begin, const PackedWidth& width,
                int64_t offset, T* out, int64_t out_row) const {
    const int64_t end = std::min(begin + kRowsOfTask, s_.keys);
    std::vector<const float*> parts;
    std::vector<int32_t> part_begin{0};
    for (int64_t j = begin; j < end; ++j) {
      for (int64_t h = pair * query_heads_; h < (pair + 1) * query_heads_; ++h) {
        for (int64_t part = 0; part < parts_; ++part)
          parts.push_back(dk_of(unit, h, part) + offset + j * width.columns);
      }
      part_begin.push_back(static_cast<int32_t>(parts.size()));
    }
    attention_table<T>().join({.parts = parts.data(),
                               .part_begin = part_begin.data(),
                               .rows = end - begin,
                               .width = width.elements,
                               .out = out,
                               .out_row = out_row});
  }

  // Kernels, mixes and sinks of the unit's heads.
  void sum_parameters(const Unit& unit, const TaskSums* sums) const {
    const auto add = [&](std::vector<double> TaskSums::*member, float* to, int64_t each,
                         double sign) {
      if (to == nullptr) return;
      for (int64_t n = 0; n < unit_heads_ * each; ++n) {
        const int64_t bundle = n / (shape_.bundle * each);
        double total = 0.0;
        for (int64_t part = 0; part < parts_; ++part)
          total += (sums[bundle * parts_ + part].*
                    member)[static_cast<size_t>(n - bundle * shape_.bundle * each)];
        to[(unit.b * s_.heads + unit.head) * each + n] = static_cast<float>(sign * total);
      }
    };
    const auto taps = [](const KeyQueryKernel& k) { return k.active() ? k.queries * k.keys : 0; };
    add(&TaskSums::kernel_before, p_.dkernel_before, taps(m_.kernel_before), 1.0);
    add(&TaskSums::kernel_after, p_.dkernel_after, taps(m_.kernel_after), 1.0);
    add(&TaskSums::mix_before, p_.dmix_before, m_.mix_before.width, 1.0);
    add(&TaskSums::mix_after, p_.dmix_after, m_.mix_after.width, 1.0);
    add(&TaskSums::row, p_.dsink, 1, -1.0);
    add(&TaskSums::bias, p_.dbias, p_.rule.bias_count, 1.0);
    for (int64_t n = 0; p_.dgate_query != nullptr && n < tasks_of_unit(); ++n)
      add_gate_gradients(unit.b, sums[n]);
    if (p_.dmix_after == nullptr) return;
    // Stored (in, out).
    const int64_t width = m_.mix_after.width, at = (unit.b * s_.heads + unit.head) * width;
    const std::vector<float> stored = turned(p_.dmix_after + at, unit_heads_, width);
    std::copy(stored.begin(), stored.end(), p_.dmix_after + at);
  }

  // The gate is the same for all heads: their units and tasks are added in order.
  void add_gate_gradients(int64_t b, const TaskSums& sums) const {
    const int64_t columns = p_.rule.gate.columns, pitch = pairs_.gate().pitch;
    float* to = p_.dgate_query + b * s_.queries * columns;
    for (int64_t i = 0; i < s_.queries; ++i)
      for (int64_t c = 0; c < columns; ++c) *to++ += sums.gate_query[i * pitch + c];
    to = p_.dgate_key + b * s_.keys * columns;
    const float* const of_key = sums.gate_key.data() + kTermMargin;
    for (int64_t j = 0; j < s_.keys; ++j)
      for (int64_t c = 0; c < columns; ++c) *to++ += of_key[c * pairs_.key_pitch() + j];
  }

  const MixingBackward<T>& p_;
  const AttentionSizes& s_;
  const MixingRule& m_;
  const MixingTable<T>& table_;
  const MixingShape shape_;
  const int64_t query_heads_, unit_heads_, keys_, strips_, parts_;
  // The maps keep capped logits: where there is a cap, q.dq gives the gradient of a temperature.
  mutable RowTurns<MixingBackward<T>> turns_;
  const int64_t dq_columns_;
  const std::vector<float> mix_after_;  ///< (out, in)
  std::vector<float> before_back_;      ///< (in, out)
  const PairOperands pairs_;
  std::vector<StripPlan> plans_;
  std::vector<Steps> steps_;
};

template <class T>
void check(const MixingBackward<T>& p) {
  check_mixing(p.sizes, p.rule, p.mixing, p.visits);
  require<ShapeError>(p.lse != nullptr, "mixing kernel",
                      "the backward pass needs the lse of the forward pass; got none");
  require<ShapeError>(
      p.row_sums != nullptr || !p.mixing.renormalise || !p.mixing.kernel_after.active(),
      "mixing kernel", "renormalised rows need the row sums of the forward pass; got none");
  require<ShapeError>((p.dgate_query != nullptr) == (p.dgate_key != nullptr), "mixing kernel",
                      "gradients of the gate come for queries and keys; got one of them");
}

template <class T>
void write_zeros(const HeadRows<T>& x, int64_t batch, int64_t heads, int64_t rows, int64_t width) {
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t n = 0; n < rows; ++n)
        for (int64_t c = 0; c < width; ++c) from_float(0.0f, x.at(b, h, n)[c]);
}

// No pair: nothing flows back.
template <class T>
void run_empty(const MixingBackward<T>& p) {
  const AttentionSizes& s = p.sizes;
  write_zeros(p.dq, s.batch, s.heads, s.queries, s.head_dim);
  write_zeros(p.dk, s.batch, s.kv_heads, s.keys, s.head_dim);
  write_zeros(p.dv, s.batch, s.kv_heads, s.keys, s.value_dim);
  const auto clear = [&s](float* x, int64_t each) {
    if (x != nullptr) std::fill_n(x, s.batch * s.heads * each, 0.0f);
  };
  clear(p.dkernel_before, p.mixing.kernel_before.queries * p.mixing.kernel_before.keys);
  clear(p.dkernel_after, p.mixing.kernel_after.queries * p.mixing.kernel_after.keys);
  clear(p.dmix_before, p.mixing.mix_before.width);
  clear(p.dmix_after, p.mixing.mix_after.width);
  clear(p.dtau, s.queries);
  clear(p.dsink, 1);
  clear(p.dbias, p.rule.bias_count);
  if (p.dgate_query == nullptr) return;
  std::fill_n(p.dgate_query, s.batch * s.queries * p.rule.gate.columns, 0.0f);
  std::fill_n(p.dgate_key, s.batch * s.keys * p.rule.gate.columns, 0.0f);
}

}  // namespace

template <class T>
void run(const MixingBackward<T>& problem, const MixingTable<T>* table) {
  check(problem);
  const AttentionSizes& s = problem.sizes;
  if (s.batch * s.heads == 0) return;
  if (s.queries == 0 || s.keys == 0) return run_empty(problem);
  Backward<T>(problem, table).run();
}
template void run(const MixingBackward<float>&, const MixingTable<float>*);
template void run(const MixingBackward<BFloat16>&, const MixingTable<BFloat16>*);

template <class T>
int64_t scratch_bytes(const MixingBackward<T>& problem) {
  check_mixing(problem.sizes, problem.rule, problem.mixing, problem.visits);
  if (problem.sizes.queries == 0 || problem.sizes.keys == 0) return 0;
  return Backward<T>(problem, nullptr).floats() * static_cast<int64_t>(sizeof(float));
}
template int64_t scratch_bytes(const MixingBackward<float>&);
template int64_t scratch_bytes(const MixingBackward<BFloat16>&);

}  // namespace fovea::kernels
