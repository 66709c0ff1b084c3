// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/attention/visible_keys.h"

#include <algorithm>

#include "fovea/attention/mechanism.h"

namespace fovea {
namespace {

/// Whole numbers from `first` to `last`, both included; may be empty.
struct Span {
  int64_t first = 0, last = -1;

  int64_t size() const { return std::max<int64_t>(0, last - first + 1); }
  Span within(Span other) const {
    return {std::max(first, other.first), std::min(last, other.last)};
  }
};

/// Numbers of `span` whose distance to `query` is a multiple of `stride`.
int64_t multiples(Span span, int64_t query, int64_t stride) {
  const auto up_to = [&](int64_t x) {  // of -infinity ... x, counted from `query`
    const int64_t distance = x - query;
    return distance >= 0 ? distance / stride : -((-distance + stride - 1) / stride);
  };
  return span.size() == 0 ? 0 : up_to(span.last) - up_to(span.first - 1);
}

/// Numbers of `span` among the last `summary` of their block.
int64_t summaries(Span span, int64_t block, int64_t summary) {
  const auto below = [&](int64_t x) {
    return x / block * summary + std::max<int64_t>(0, x % block - (block - summary));
  };
  return span.size() == 0 ? 0 : below(span.last + 1) - below(span.first);
}

}  // namespace

int64_t visible_keys(const MaskRule& rule, int64_t query, int64_t length) {
  const int64_t sinks = std::min({rule.sinks, query + 1, length});
  const Span rest{sinks, rule.causal ? query : length - 1};
  const Span near{query - rule.window + 1, query + rule.window - 1};
  switch (rule.sparsity) {
    case MaskRule::Sparsity::full:
      return sinks + (rule.window == 0 ? rest : rest.within(near)).size();
    case MaskRule::Sparsity::strided: {
      const Span local = rest.within(near);
      if (rule.stride == 0) return sinks + local.size();
      return sinks + local.size() + multiples(rest, query, rule.stride) -
             multiples(local, query, rule.stride);
    }
    case MaskRule::Sparsity::fixed: {
      const int64_t begin = query / rule.block * rule.block;
      const Span own = rest.within({begin, begin + rule.block - 1});
      return sinks + own.size() + summaries(rest, rule.block, rule.summary) -
             summaries(own, rule.block, rule.summary);
    }
  }
  return sinks;
}

double visible_keys(const AttentionSpec& spec, int64_t query, int64_t length) {
  if (const KeyPattern* pattern = key_pattern(spec))
    return pattern->visible_keys(spec, query, length);
  return static_cast<double>(visible_keys(spec.mask, query, length));
}

int64_t window_reach(const MaskRule& rule) {
  return rule.sparsity == MaskRule::Sparsity::full && rule.window > 0 ? rule.window - 1 : -1;
}

int64_t window_reach(const AttentionSpec& spec) {
  const KeyPattern* pattern = key_pattern(spec);
  return pattern != nullptr ? pattern->window_reach(spec) : window_reach(spec.mask);
}

}  // namespace fovea
