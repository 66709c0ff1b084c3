// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/decode/selector.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "fovea/base/error.h"
#include "fovea/kernels/cpu/kernel_levels.h"
#include "fovea/kernels/cpu/pointwise/attention_table.h"
#include "fovea/kernels/cpu/team.h"

namespace fovea::kernels {

template <class T>
const SelectorTable<T>& selector_table() {
  return chosen_kernels<SelectorTable<T>>();
}
template const SelectorTable<float>& selector_table();
template const SelectorTable<BFloat16>& selector_table();

namespace {

// Below this many logits a thread's start costs more than it saves.
constexpr int64_t kParallelLogits = 8192;

// The `count` of n indices with the largest size(), ties to the lower one, ascending.
template <class Size>
std::vector<int32_t> largest_of(int64_t n, int64_t count, const Size& size) {
  std::vector<int32_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  const auto before = [&](int32_t a, int32_t b) {
    return size(a) != size(b) ? size(a) > size(b) : a < b;
  };
  std::nth_element(order.begin(), order.begin() + count, order.end(), before);
  order.resize(static_cast<size_t>(count));
  std::ranges::sort(order);
  return order;
}

// What choosing needs, of one thread: kept from token to token, because fresh memory is zeroed.
struct ChoiceScratch {
  std::vector<float> tile, weights, factors, scores, maxima;
  std::vector<int32_t> memory;
};

template <class X>
X* at_least(std::vector<X>& x, int64_t size) {
  if (std::ssize(x) < size) x.resize(static_cast<size_t>(size));
  return x.data();
}

void choose_all(std::span<int32_t> chosen, std::span<float> alpha) {
  std::ranges::fill(alpha, 1.0f);
  std::iota(chosen.begin(), chosen.end(), 0);
}

// The keys that heads choose by their weights, and the weight of these keys of every head.
void choose(const RowWeights& rows, const KeyBudget& budget, std::span<int32_t> chosen,
            float* alpha, ChoiceScratch& scratch) {
  const auto& table = selector_table<float>();
  const int64_t others = rows.length - 1 - budget.recent, best = budget.past - budget.recent;
  std::iota(chosen.begin() + best, chosen.end(), static_cast<int32_t>(others));
  if (best > 0) {
    float* const scores = at_least(scratch.scores, others);
    float* const maxima = at_least(scratch.maxima, (others + kScoreBlock - 1) / kScoreBlock);
    table.scores(rows, others, scores, maxima);
    table.largest(scores, maxima, others, best, at_least(scratch.memory, largest_memory(others)),
                  chosen.data());
  }
  const int64_t tiles = rows.tiles();
  for (int64_t h = 0; h < rows.heads; ++h) {
    double total = 0.0;
    for (const int32_t j : chosen)
      total += rows.weights[h * rows.pitch + j] * rows.factors[h * tiles + j / kWeightTile];
    alpha[h] = static_cast<float>(std::min(1.0, total));
  }
}

// Queries of one key head, and the components that they choose by.
struct ComponentQuery {
  std::vector<int32_t> components;
  std::vector<float> q, scales;  // [heads][components], [heads]
};

template <class T>
ComponentQuery component_query(const ComponentChoice<T>& p, int64_t b, int64_t g) {
  const int64_t d = p.sizes.head_dim, heads = p.sizes.heads / p.sizes.kv_heads;
  std::vector<float> sums(static_cast<size_t>(d), 0.0f);
  for (int64_t h = 0; h < heads; ++h) {
    const T* const q = p.q.at(b, g * heads + h);
    for (int64_t c = 0; c < d; ++c) sums[static_cast<size_t>(c)] += std::abs(to_float(q[c]));
  }
  ComponentQuery query{
      .components = largest_of(d, p.components, [&](int32_t c) { return sums[c]; }),
      .q = {},
      .scales = {}};
  const double scale = p.tau != nullptr ? 1.0 / p.tau[b] : p.scale;
  for (int64_t h = 0; h < heads; ++h) {
    const T* const q = p.q.at(b, g * heads + h);
    double whole = 0.0, part = 0.0;
    for (int64_t c = 0; c < d; ++c) whole += std::abs(to_float(q[c]));
    for (const int32_t c : query.components) part += std::abs(to_float(q[c]));
    query.scales.push_back(part > 0.0 ? static_cast<float>(scale * std::sqrt(whole / part)) : 0.0f);
    for (const int32_t c : query.components) query.q.push_back(to_float(q[c]));
  }
  return query;
}

// Rows that are read next lie all over memory: fetched together they cost one latency. Inline: GCC
// takes a function that only prefetches for one that does nothing.
template <class T>
FOVEA_INLINE void fetch_rows(const HeadRows<const T>& rows, int64_t b, int64_t g, int64_t width,
                             std::span<const int32_t> list) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  if (rows.data == nullptr) return;
  for (const int32_t j : list)
    for (int64_t c = 0; c < width; c += kLine) __builtin_prefetch(rows.at(b, g, j) + c, 0, 2);
}

template <class T>
void choose_one(const ComponentChoice<T>& p, int64_t item, ChoiceScratch& scratch) {
  const int64_t heads = p.sizes.heads / p.sizes.kv_heads, length = p.sizes.keys;
  const int64_t b = item / p.sizes.kv_heads, g = item % p.sizes.kv_heads;
  float* const alpha = p.alpha + item * heads;
  const int64_t count = p.budget.chosen_of(length);
  const std::span<int32_t> chosen(p.chosen + item * count, static_cast<size_t>(count));
  if (count == length) return choose_all(chosen, {alpha, static_cast<size_t>(heads)});
  RowWeights weights{.heads = heads, .length = length};
  weights.pitch = weights.tiles() * kWeightTile;
  weights.weights = at_least(scratch.weights, heads * weights.pitch);
  weights.factors = at_least(scratch.factors, heads * weights.tiles());
  const ComponentQuery query = component_query(p, b, g);
  selector_table<T>().component_weights(
      {.keys = p.keys + b * p.batch + g * p.head,
       .component = p.component,
       .components = query.components.data(),
       .count = p.components,
       .q = query.q.data(),
       .scales = query.scales.data(),
       .memory = reinterpret_cast<T*>(at_least(scratch.tile, p.components * kWeightTile))},
      weights);
  choose(weights, p.budget, chosen, alpha, scratch);
  fetch_rows(p.next_k, b, g, p.sizes.head_dim, chosen);
  fetch_rows(p.next_v, b, g, p.sizes.value_dim, chosen);
}

}  // namespace

std::vector<int32_t> largest_scores(std::span<const float> scores, std::span<const float> maxima,
                                    int64_t count) {
  const int64_t length = std::ssize(scores);
  std::vector<int32_t> keys(static_cast<size_t>(std::clamp<int64_t>(count, 0, length)));
  if (keys.empty()) return keys;
  std::vector<int32_t> memory(static_cast<size_t>(largest_memory(length)));
  selector_table<float>().largest(scores.data(), maxima.data(), length, std::ssize(keys),
                                  memory.data(), keys.data());
  return keys;
}

template <class T>
void run(const ComponentChoice<T>& p) {
  const int64_t heads = p.sizes.heads / p.sizes.kv_heads;
  require<ShapeError>(heads <= kDecodeRows && p.sizes.head_dim <= kWidestHead, "selector kernel",
                      "at most {} heads of {} components choose together; got {} of {}",
                      kDecodeRows, kWidestHead, heads, p.sizes.head_dim);
  const int64_t items = p.sizes.batch * p.sizes.kv_heads;
  const bool parallel = items > 1 && items * heads * p.sizes.keys > kParallelLogits;
  Team::run(parallel, [&](Team::Member& team) {
    thread_local ChoiceScratch scratch;
    team.each(
        items, [&](int64_t item) { choose_one(p, item, scratch); }, Meet::no);
  });
}

void run(const LogitChoice& p) {
  const bool parallel = p.rows * p.heads * p.first_length > kParallelLogits;
  Team::run(parallel, [&](Team::Member& team) {
    thread_local ChoiceScratch scratch;
    team.each(
        p.rows,
        [&](int64_t r) {
          float* const alpha = p.alpha + r * p.heads;
          RowWeights weights{.weights = p.logits + r * p.pitch,
                             .pitch = p.rows * p.pitch,
                             .heads = p.heads,
                             .length = p.first_length + r};
          const int64_t count = p.budget.chosen_of(weights.length);
          const std::span<int32_t> chosen(p.chosen + p.begin[r], static_cast<size_t>(count));
          if (count == weights.length)
            return choose_all(chosen, {alpha, static_cast<size_t>(p.heads)});
          weights.factors = at_least(scratch.factors, p.heads * weights.tiles());
          selector_table<float>().logit_weights(weights);
          choose(weights, p.budget, chosen, alpha, scratch);
        },
        Meet::no);
  });
}

template void run(const ComponentChoice<float>&);
template void run(const ComponentChoice<BFloat16>&);

}  // namespace fovea::kernels
