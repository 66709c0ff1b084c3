// SPDX-FileCopyrightText: The Fovea authors
// SPDX-License-Identifier: Apache-2.0
#include "fovea/engine/logprobs.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

namespace fovea {
namespace {

constexpr int64_t kRowsAtOnce = 64;  // of logits: 12 MB with 49,152 tokens

bool likelier(const TokenLogprob& a, const TokenLogprob& b) {
  return a.logprob > b.logprob || (a.logprob == b.logprob && a.token < b.token);
}

/// The `count` likeliest, by a heap whose front is the least likely of them.
std::vector<TokenLogprob> likeliest(std::span<const float> logits, size_t count) {
  std::vector<TokenLogprob> best;
  count = std::min(count, logits.size());
  for (size_t i = 0; i < logits.size() && count > 0; ++i) {
    const TokenLogprob candidate{static_cast<int32_t>(i), logits[i]};
    if (best.size() == count) {
      if (!likelier(candidate, best.front())) continue;
      std::ranges::pop_heap(best, likelier);
      best.pop_back();
    }
    best.push_back(candidate);
    std::ranges::push_heap(best, likelier);
  }
  std::ranges::sort_heap(best, likelier);
  return best;
}

PlaceLogprobs of_row(std::span<const float> logits, int32_t token, int64_t top) {
  const float highest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float l : logits) sum += std::exp(l - highest);
  const double log_sum = highest + std::log(sum);
  PlaceLogprobs place{.token = {token, logits[static_cast<size_t>(token)] - log_sum},
                      .top = likeliest(logits, static_cast<size_t>(top))};
  for (TokenLogprob& t : place.top) t.logprob -= log_sum;
  return place;
}

std::span<const float> row_of(const at::Tensor& logits, int64_t row, int64_t vocabulary) {
  return {logits.const_data_ptr<float>() + row * logits.size(-1), static_cast<size_t>(vocabulary)};
}

}  // namespace

PlaceLogprobs place_logprobs(const at::Tensor& logits_v, int64_t vocabulary, int32_t token,
                             int64_t top) {
  const at::Tensor row = logits_v.to(at::kCPU, at::kFloat).contiguous();
  return of_row(row_of(row, 0, vocabulary), token, top);
}

std::vector<std::optional<PlaceLogprobs>> following_logprobs(const Transformer& model,
                                                             const at::Tensor& states_tc,
                                                             std::span<const int32_t> tokens,
                                                             int64_t vocabulary, int64_t top) {
  std::vector<std::optional<PlaceLogprobs>> all(tokens.size());
  for (int64_t from = 0; from < std::ssize(tokens); from += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, std::ssize(tokens) - from);
    const at::Tensor logits =
        model.logits(states_tc.narrow(0, from, count)).to(at::kCPU, at::kFloat).contiguous();
    at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const auto n = static_cast<size_t>(from + row);
        all[n] = of_row(row_of(logits, row, vocabulary), tokens[n], top);
      }
    });
  }
  return all;
}

}  // namespace fovea
