// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/kernels/cpu/selector.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "fovea/kernels/cpu/isa.h"
#include "fovea/kernels/cpu/team.h"

namespace fovea::kernels {
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

// What choosing needs beside logits, of one thread.
struct ChoiceScratch {
  std::vector<float> scores, maxima, factors;
};

// Logits [heads][pitch] of a row with `length` keys become the chosen keys and their weight.
std::vector<int32_t> choose(const SelectorTable<float>& table, float* logits, int64_t heads,
                            int64_t pitch, int64_t length, const KeyBudget& budget, float* alpha,
                            ChoiceScratch& scratch) {
  std::vector<int32_t> chosen;
  std::fill_n(alpha, heads, 1.0f);
  if (length <= budget.past + 1) {
    chosen.resize(static_cast<size_t>(length));
    std::iota(chosen.begin(), chosen.end(), 0);
    return chosen;
  }
  scratch.factors.resize(static_cast<size_t>(heads));
  for (int64_t h = 0; h < heads; ++h)
    scratch.factors[static_cast<size_t>(h)] = table.exponentials(logits + h * pitch, length);
  const int64_t others = length - 1 - budget.recent;
  scratch.scores.resize(static_cast<size_t>(others));
  scratch.maxima.resize(static_cast<size_t>((others + kScoreBlock - 1) / kScoreBlock));
  table.scores(logits, pitch, scratch.factors.data(), heads, others, scratch.scores.data(),
               scratch.maxima.data());
  chosen = largest_scores(scratch.scores, scratch.maxima, budget.past - budget.recent);
  for (int64_t j = others; j < length; ++j) chosen.push_back(static_cast<int32_t>(j));
  for (int64_t h = 0; h < heads; ++h) {
    double total = 0.0;
    for (const int32_t j : chosen) total += logits[h * pitch + j];
    alpha[h] = static_cast<float>(std::min(1.0, total * scratch.factors[static_cast<size_t>(h)]));
  }
  return chosen;
}

// Queries of one key head, and the components that they choose by.
struct ComponentQuery {
  std::vector<int32_t> components;
  std::vector<float> q;  // [heads][components], scaled
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
      .components = largest_of(d, p.components, [&](int32_t c) { return sums[c]; }), .q = {}};
  const double scale = p.tau != nullptr ? 1.0 / p.tau[b] : p.scale;
  for (int64_t h = 0; h < heads; ++h) {
    const T* const q = p.q.at(b, g * heads + h);
    double whole = 0.0, part = 0.0;
    for (int64_t c = 0; c < d; ++c) whole += std::abs(to_float(q[c]));
    for (const int32_t c : query.components) part += std::abs(to_float(q[c]));
    const double factor = part > 0.0 ? scale * std::sqrt(whole / part) : 0.0;
    for (const int32_t c : query.components)
      query.q.push_back(static_cast<float>(factor * to_float(q[c])));
  }
  return query;
}

}  // namespace

std::vector<int32_t> largest_scores(std::span<const float> scores, std::span<const float> maxima,
                                    int64_t count) {
  if (count <= 0) return {};
  // As many blocks as are wanted have a largest score of at least this, so no smaller one counts.
  float least = -INFINITY;
  if (std::ssize(maxima) > count) {
    std::vector<float> order(maxima.begin(), maxima.end());
    std::nth_element(order.begin(), order.begin() + (count - 1), order.end(), std::greater<>());
    least = order[static_cast<size_t>(count - 1)];
  }
  std::vector<int32_t> some;
  for (int64_t block = 0; block < std::ssize(maxima); ++block) {
    if (maxima[static_cast<size_t>(block)] < least) continue;
    const int64_t end = std::min((block + 1) * kScoreBlock, std::ssize(scores));
    for (int64_t j = block * kScoreBlock; j < end; ++j)
      if (scores[static_cast<size_t>(j)] >= least) some.push_back(static_cast<int32_t>(j));
  }
  const auto best = largest_of(std::ssize(some), std::min(count, std::ssize(some)), [&](int32_t n) {
    return scores[static_cast<size_t>(some[static_cast<size_t>(n)])];
  });
  std::vector<int32_t> keys;
  keys.reserve(best.size());
  for (const int32_t n : best) keys.push_back(some[static_cast<size_t>(n)]);
  return keys;
}

template <class T>
void run(const ComponentChoice<T>& p) {
  const int64_t heads = p.sizes.heads / p.sizes.kv_heads, length = p.sizes.keys;
  const int64_t items = p.sizes.batch * p.sizes.kv_heads;
  const bool parallel = items > 1 && items * heads * length > kParallelLogits;
  Team::run(parallel, [&](Team::Member& team) {
    std::vector<float> logits(static_cast<size_t>(heads * length));
    ChoiceScratch scratch;
    team.each(
        items,
        [&](int64_t item) {
          const int64_t b = item / p.sizes.kv_heads, g = item % p.sizes.kv_heads;
          const ComponentQuery query = component_query(p, b, g);
          if (length > p.budget.past + 1)
            selector_table<T>().component_logits(p.keys + b * p.batch + g * p.head, p.component,
                                                 query.components.data(), p.components,
                                                 query.q.data(), heads, logits.data(), length);
          p.chosen[item] = choose(selector_table<float>(), logits.data(), heads, length, length,
                                  p.budget, p.alpha + item * heads, scratch);
        },
        Meet::no);
  });
}

void run(const LogitChoice& p) {
  const bool parallel = p.rows * p.heads * p.first_length > kParallelLogits;
  Team::run(parallel, [&](Team::Member& team) {
    ChoiceScratch scratch;
    team.each(
        p.rows,
        [&](int64_t r) {
          p.chosen[r] =
              choose(selector_table<float>(), p.logits + r * p.pitch, p.heads, p.rows * p.pitch,
                     p.first_length + r, p.budget, p.alpha + r * p.heads, scratch);
        },
        Meet::no);
  });
}

template <class T>
const SelectorTable<T>& selector_table() {
  static const SelectorTable<T>& chosen = pick_by_isa<const SelectorTable<T>&()>(
      {selector_scalar<T>, FOVEA_X86(selector_avx2<T>), FOVEA_X86(selector_avx512<T>)})();
  return chosen;
}

#define FOVEA_INSTANTIATE(T)                            \
  template const SelectorTable<T>& selector_table<T>(); \
  template void run(const ComponentChoice<T>&);
FOVEA_INSTANTIATE(float)
FOVEA_INSTANTIATE(BFloat16)
#undef FOVEA_INSTANTIATE

}  // namespace fovea::kernels
