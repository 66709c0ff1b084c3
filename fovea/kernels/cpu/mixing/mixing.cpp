// The forward pass of the mixing kernels over a batch: checks, packing, work list, threads.
//
// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/mixing/mixing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "fovea/base/error.h"
#include "fovea/kernels/cpu/kernel_levels.h"
#include "fovea/kernels/cpu/mixing/mixing_driver.h"
#include "fovea/kernels/cpu/mixing/mixing_pairs.h"

namespace fovea::kernels {

int64_t mixed_heads(const MixingRule& rule) {
  return std::lcm(rule.mix_before.active() ? rule.mix_before.width : 1,
                  rule.mix_after.active() ? rule.mix_after.width : 1);
}

template <class T>
const MixingTable<T>& mixing_table() {
  return chosen_kernels<MixingTable<T>>();
}
template const MixingTable<float>& mixing_table();
template const MixingTable<BFloat16>& mixing_table();

template <class T>
std::string_view mixing_isa() {
  return mixing_table<T>().isa;
}
template std::string_view mixing_isa<float>();
template std::string_view mixing_isa<BFloat16>();

namespace {

std::optional<std::string> why_not_kernel(const KeyQueryKernel& kernel) {
  if (!kernel.active()) return std::nullopt;
  if (kernel.queries >= 1 && kernel.queries <= kMostKernelRows && kernel.keys >= 1 &&
      kernel.keys <= kMostKernelKeys)
    return std::nullopt;
  return fmt::format("key-query kernels must be at most {} queries x {} keys; got {} x {}",
                     kMostKernelRows, kMostKernelKeys, kernel.queries, kernel.keys);
}

std::optional<std::string> why_not_mix(const HeadMix& mix, int64_t heads) {
  if (!mix.active()) return std::nullopt;
  if (mix.width >= 1 && mix.width <= kMostMixedHeads && heads % mix.width == 0) return std::nullopt;
  return fmt::format("groups of mixed heads must divide {} heads and have at most {}; got {}",
                     heads, kMostMixedHeads, mix.width);
}

}  // namespace

std::optional<std::string> why_not_mixing_kernels(const AttentionSizes& sizes,
                                                  const MixingRule& mixing) {
  if (const auto why = why_not_attention_kernels(sizes.head_dim, sizes.value_dim))
    return fmt::format("{}; got {} and {}", *why, sizes.head_dim, sizes.value_dim);
  for (const KeyQueryKernel* kernel : {&mixing.kernel_before, &mixing.kernel_after})
    if (const auto why = why_not_kernel(*kernel)) return why;
  for (const HeadMix* mix : {&mixing.mix_before, &mixing.mix_after})
    if (const auto why = why_not_mix(*mix, sizes.heads)) return why;
  return std::nullopt;
}

void check_mixing(const AttentionSizes& sizes, const ScoreParameters& rule,
                  const MixingRule& mixing, std::span<const Visits> visits) {
  if (const auto why = why_not_mixing_kernels(sizes, mixing))
    fail<UnsupportedError>("mixing kernel", "{}", *why);
  check_sizes(sizes, rule.gate, visits);
}

namespace {

// A bundle of heads in one row of the batch.
struct Bundle {
  int64_t row = 0, first_head = 0;  ///< the row counts within its wave
};

struct Item {
  size_t bundle = 0;
  int64_t strip_begin = 0, strip_end = 0;
};

template <class T>
class Forward {
 public:
  Forward(const MixingForward<T>& problem, const MixingTable<T>* table)
      : p_(problem),
        s_(problem.sizes),
        table_(table != nullptr ? *table : mixing_table<T>()),
        shape_(problem.sizes, problem.mixing, table_),
        mix_after_(outputs_first(problem.mixing.mix_after, problem.sizes.heads)),
        pairs_(problem) {
    const bool lags = p_.mixing.kernel_before.active() || p_.mixing.kernel_after.active();
    for (const Visits& visits : p_.visits)
      plans_.push_back(make_strip_plan(visits, kStripRows, p_.mixing.earlier(), lags));
  }

  int64_t floats() const {
    return rows_at_once() * packed_floats() + Team::threads(parallel()) * scratch_floats();
  }

  void run() {
    const int64_t at_once = rows_at_once();
    float* const memory = packed_memory(floats());
    for (int64_t b = 0; b < s_.batch; b += at_once)
      run_rows(b, std::min(b + at_once, s_.batch), memory, memory + at_once * packed_floats());
  }

 private:
  bool parallel() const { return products(s_) > kParallelProducts; }
  int64_t bundles_of_row() const { return s_.heads / shape_.bundle; }
  /// Rows of the batch that are packed together: enough work for all threads.
  int64_t rows_at_once() const {
    const int64_t wanted = 2 * Team::threads(parallel());
    return std::clamp<int64_t>((wanted + bundles_of_row() - 1) / bundles_of_row(), 1,
                               parallel() && omp_get_max_threads() > 1 ? s_.batch : 1);
  }
  int64_t packed_floats() const { return s_.kv_heads * (shape_.key_floats + shape_.value_floats); }

  int64_t scratch_floats() const {
    int64_t most = table_.panel * std::max(shape_.key.pitch, shape_.value.pitch);
    for (const StripPlan& plan : plans_) {
      MixingStrips<T> strips = common_strips();
      strips.steps = plan.view();
      most = std::max(most, table_.forward_scratch(strips));
    }
    return round_up(most, 64);
  }

  void run_rows(int64_t begin, int64_t end, float* packed, float* scratch) {
    const int64_t pairs = (end - begin) * s_.kv_heads, each = scratch_floats();
    unusable_.assign(static_cast<size_t>(pairs * shape_.key_words), 0);
    const std::vector<Bundle> bundles = bundles_of(begin, end);
    const std::vector<Item> items = items_of(bundles, begin);
    Team::run(parallel(), [&](Team::Member& team) {
      float* const mine = scratch + team.index() * each;
      team.each(pairs * shape_.panels, [&](int64_t n) {
        const int64_t pair = n / shape_.panels;
        pack(begin + pair / s_.kv_heads, pair % s_.kv_heads, n % shape_.panels,
             packed + pair * (shape_.key_floats + shape_.value_floats), pair, mine);
      });
      team.each_in_turn(std::ssize(items), [&](int64_t n) {
        attend(bundles[items[n].bundle], items[n], begin, packed, mine);
      });
    });
  }

  std::vector<Bundle> bundles_of(int64_t begin, int64_t end) const {
    std::vector<Bundle> all;
    for (int64_t b = begin; b < end; ++b)
      for (int64_t h = 0; h < s_.heads; h += shape_.bundle) all.push_back({b - begin, h});
    return all;
  }

  // Enough ranges to share evenly. Where strips hand rows on, a range's first strip costs half a
  // strip more: then a range has several.
  std::vector<Item> items_of(const std::vector<Bundle>& bundles, int64_t begin) const {
    const bool joined = p_.mixing.earlier() > 0;
    const int64_t threads = Team::threads(parallel()), count = std::ssize(bundles);
    std::vector<Item> items;
    for (size_t n = 0; n < bundles.size(); ++n) {
      const StripPlan& plan = plan_of(begin + bundles[n].row);
      const int64_t wanted = threads == 1 ? 1 : (kItemsPerThread * threads + count - 1) / count;
      const int64_t parts =
          std::clamp<int64_t>(wanted, 1, std::max<int64_t>(plan.strips() / (joined ? 6 : 1), 1));
      const std::vector<int64_t> borders = even_ranges(plan, parts);
      for (size_t part = 0; part + 1 < borders.size(); ++part)
        if (borders[part] < borders[part + 1])
          items.push_back({n, borders[part], borders[part + 1]});
    }
    return items;
  }

  const StripPlan& plan_of(int64_t b) const {
    return plans_[plans_.size() == 1 ? 0 : static_cast<size_t>(b)];
  }

  void pack(int64_t b, int64_t g, int64_t panel, float* to, int64_t pair, float* scratch) {
    const int64_t begin = panel * table_.panel;
    if (begin < s_.keys) {
      table_.pack({.data = p_.k.at(b, g, begin),
                   .stride = p_.k.row,
                   .rows = std::min(table_.panel, s_.keys - begin)},
                  shape_.key, {.columns = to + begin * shape_.key.pitch}, scratch);
    }
    int32_t index[kMostPanel];
    for (int64_t r = 0; r < table_.panel; ++r) {
      const int64_t key = begin + r - shape_.lag;
      const bool real = key >= 0 && key < s_.keys;
      index[r] = real && usable(b, g, key, pair) ? static_cast<int32_t>(key) : -1;
    }
    table_.pack({.data = p_.v.at(b, g), .stride = p_.v.row, .rows = table_.panel, .index = index},
                shape_.value,
                {.rows = to + shape_.key_floats + begin / table_.elements * shape_.value.columns},
                scratch);
  }

  // A value that is not finite must not reach rows that weigh it with 0 because they do not see it:
  // it is packed as zeros, and rows that see it become NaN.
  bool usable(int64_t b, int64_t g, int64_t key, int64_t pair) {
    const T* const row = p_.v.at(b, g, key);
    float sum = 0.0f;
    for (int64_t c = 0; c < s_.value_dim; ++c) sum += 0.0f * to_float(row[c]);
    if (sum == 0.0f) return true;
    __atomic_fetch_or(&unusable_[static_cast<size_t>(pair * shape_.key_words + key / kStepKeys)],
                      uint64_t{1} << (key % kStepKeys), __ATOMIC_RELAXED);
    return false;
  }

  // What all tasks share.
  MixingStrips<T> common_strips() const {
    const MixingRule& m = p_.mixing;
    return {.key_width = shape_.key,
            .value_width = shape_.value,
            .queries = s_.queries,
            .keys = s_.keys,
            .first_index = s_.keys - s_.queries,
            .heads = shape_.bundle,
            .q_row = p_.q.row,
            .out_row = p_.out.row,
            .rows_before = m.kernel_before.active() ? m.kernel_before.queries : 0,
            .keys_before = m.kernel_before.active() ? m.kernel_before.keys : 0,
            .rows_after = m.kernel_after.active() ? m.kernel_after.queries : 0,
            .keys_after = m.kernel_after.active() ? m.kernel_after.keys : 0,
            .mix_before = m.mix_before.weights,
            .mix_after = mix_after_.empty() ? nullptr : mix_after_.data(),
            .width_before = m.mix_before.width,
            .width_after = m.mix_after.width,
            .equation = m.equation,
            .renormalise = m.renormalise && m.kernel_after.active(),
            .scale = p_.rule.scale,
            .capped = p_.rule.soft_cap > 0.0f,
            .drops = p_.rule.dropout > 0.0f,
            .most_kept = p_.most_kept};
  }

  void attend(const Bundle& bundle, const Item& item, int64_t begin, const float* packed,
              float* scratch) const {
    const int64_t b = begin + bundle.row;
    const StripPlan& plan = plan_of(b);
    const Visits& visits = visits_of(p_.visits, b);
    MixingStrips<T> task = common_strips();
    std::vector<MixingHead<T>> heads;
    for (int64_t h = bundle.first_head; h < bundle.first_head + shape_.bundle; ++h)
      heads.push_back(head_of(b, h, bundle.row * s_.kv_heads, packed));
    task.head = heads.data();
    // Matrices of the bundle's groups.
    if (task.mix_before != nullptr) task.mix_before += bundle.first_head * task.width_before;
    if (task.mix_after != nullptr) task.mix_after += bundle.first_head * task.width_after;
    task.tau = p_.rule.tau != nullptr ? p_.rule.tau + b * s_.queries : nullptr;
    pairs_.set(b, visits, task);
    task.ranges = visits.by_query.ranges.data();
    task.range_begin = visits.by_query.block_begin.data();
    task.first_row = plan.first_row.empty() ? nullptr : plan.first_row.data();
    task.steps = plan.view();
    task.strip_begin = item.strip_begin;
    task.strip_end = item.strip_end;
    table_.forward(task, scratch);
  }

  MixingHead<T> head_of(int64_t b, int64_t h, int64_t first_pair, const float* packed) const {
    const int64_t g = h / (s_.heads / s_.kv_heads), pair = first_pair + g;
    const float* const keys = packed + pair * (shape_.key_floats + shape_.value_floats);
    const MixingRule& m = p_.mixing;
    const int64_t row = (b * s_.heads + h) * s_.queries;
    const auto taps = [h](const KeyQueryKernel& k) {
      return k.active() ? k.taps + h * k.queries * k.keys : nullptr;
    };
    return {.q = p_.q.at(b, h),
            .out = p_.out.at(b, h),
            .keys = keys,
            .values = keys + shape_.key_floats,
            .unusable = unusable_.data() + pair * shape_.key_words,
            .taps_before = taps(m.kernel_before),
            .taps_after = taps(m.kernel_after),
            .sink = p_.rule.sink_logit != nullptr ? p_.rule.sink_logit[h]
                                                  : -std::numeric_limits<float>::infinity(),
            .lse = p_.lse != nullptr ? p_.lse + row : nullptr,
            .row_sums = p_.row_sums != nullptr ? p_.row_sums + row : nullptr,
            .rule = head_rule(p_.rule, b, h)};
  }

  const MixingForward<T>& p_;
  const AttentionSizes& s_;
  const MixingTable<T>& table_;
  const MixingShape shape_;
  const std::vector<float> mix_after_;
  const PairOperands pairs_;
  std::vector<StripPlan> plans_;
  std::vector<uint64_t> unusable_;  ///< [rows of the wave, kv heads][key words]
};

}  // namespace

template <class T>
void run(const MixingForward<T>& problem, const MixingTable<T>* table) {
  check_mixing(problem.sizes, problem.rule, problem.mixing, problem.visits);
  if (problem.sizes.batch * problem.sizes.heads * problem.sizes.queries == 0) return;
  Forward<T>(problem, table).run();
}
template void run(const MixingForward<float>&, const MixingTable<float>*);
template void run(const MixingForward<BFloat16>&, const MixingTable<BFloat16>*);

template <class T>
int64_t scratch_bytes(const MixingForward<T>& problem) {
  check_mixing(problem.sizes, problem.rule, problem.mixing, problem.visits);
  return Forward<T>(problem, nullptr).floats() * static_cast<int64_t>(sizeof(float));
}
template int64_t scratch_bytes(const MixingForward<float>&);
template int64_t scratch_bytes(const MixingForward<BFloat16>&);

}  // namespace fovea::kernels
